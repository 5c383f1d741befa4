-- Extend leases that are still the caller's.
--
-- Prelude  clock, window, frame, job, service, settle
-- KEYS[1]  zset  leases: token, score end (epoch ms)
-- KEYS[2]  hash  headers by token
-- KEYS[3]  hash  control: when the queue was last served
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  lease, ms from now
-- ARGV[3]  and on, two a job: token; fencing token
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, control = KEYS[1], KEYS[2], KEYS[3]
local now_ms, lease_ms = math.ceil(read_clock(ARGV[1]) / 1000), tonumber(ARGV[2])
local lease_end = now_ms + lease_ms

local held, lost = ours(headers, 3, 2)
if #held == 0 then return lost end
local served = serve(read_service(control), leases, now_ms, lease_ms, true, true)
-- A script whose first write is a removal is not refused by a full server, and a ZADD would be: without
-- renewals every job that runs would soon run twice.
redis.call('ZREM', leases, '')
if served then write_service(control, leases, served) end
local ends = {}
for _, job in ipairs(held) do
  ends[#ends + 1] = lease_end
  ends[#ends + 1] = job.token
end
redis.call('ZADD', leases, 'XX', unpack(ends))
return lost
