-- End failed attempts: the jobs run again later. Their leases become places among the retries.
--
-- Prelude  clock, count, window, frame, job, settle
-- Keys     leases, headers, retries, errors, counters, channel
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  and on, four a job: token; fencing token; wait (ms); error as JSON
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_ms = math.ceil(read_clock(ARGV[1]) / 1000)

local held, lost = ours(keys.headers, 2, 4)
if #held == 0 then return lost end
check_hashes(keys.errors, keys.counters)
local head = redis.call('ZRANGE', keys.retries, 0, 0, 'WITHSCORES')[2]
redis.call('ZREM', keys.leases, unpack(tokens_of(held)))
local first = math.huge
for _, job in ipairs(held) do
  local start = now_ms + tonumber(ARGV[job.at + 2])
  first = math.min(first, start)
  redis.call('ZADD', keys.retries, start, job.token)
  redis.call('HSET', keys.headers, job.token,
    struct.pack(HEADER, job.attempts + 1, job.kills, job.start, NOBODY, NOBODY) .. job.key)
  redis.call('HSET', keys.errors, job.token, ARGV[job.at + 3])
end
add_to(keys.counters, 'retried', #held)
if not head or first < tonumber(head) then publish(keys.channel, first) end
return lost
