-- Extend leases that are still the caller's.
--
-- Prelude  clock, window, frame, job, service, settle
-- Keys     leases, headers, control
-- Args     lease_ms: how long a lease lasts
--          jobs... (token, fence): token; fencing token
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_ms, lease_ms = math.ceil(read_clock() / 1000), tonumber(args.lease_ms)
local lease_end = now_ms + lease_ms

local held, lost = ours()
if #held == 0 then return lost end
local served = serve(read_service(keys.control), keys.leases, now_ms, lease_ms, true, true)
-- A full server refuses a ZADD, but not a script whose first write is a removal. Without renewals, every job that runs
-- would soon run twice.
redis.call('ZREM', keys.leases, '')
if served then write_service(keys.control, keys.leases, served) end
local ends = {}
for _, job in ipairs(held) do
  ends[#ends + 1] = lease_end
  ends[#ends + 1] = job.token
end
redis.call('ZADD', keys.leases, 'XX', unpack(ends))
return lost
