-- End an attempt that failed: the same job again, later. The lease becomes a place among the retries.
--
-- Prelude  clock, count, window, frame, job, settle
-- KEYS[1]  zset  leases: token, score end (epoch ms)
-- KEYS[2]  hash  headers by token
-- KEYS[3]  zset  retries: token, score start time (epoch ms)
-- KEYS[4]  hash  errors by token
-- KEYS[5]  hash  counters
-- KEYS[6]  channel  ours: a lease changed
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  and on, four a job: token; fencing token; wait (ms); error as JSON
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, retries, errors, counters, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now_ms = math.ceil(read_clock(ARGV[1]) / 1000)

local held, lost = ours(headers, 2, 4)
if #held == 0 then return lost end
check_hashes(errors, counters)
local head = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')[2]
redis.call('ZREM', leases, unpack(tokens_of(held)))
local first = math.huge
for _, job in ipairs(held) do
  local due = now_ms + tonumber(ARGV[job.at + 2])
  first = math.min(first, due)
  redis.call('ZADD', retries, due, job.token)
  redis.call('HSET', headers, job.token,
    struct.pack(HEADER, job.attempts + 1, job.kills, job.due, NOBODY, NOBODY) .. job.key)
  redis.call('HSET', errors, job.token, ARGV[job.at + 3])
end
add_to(counters, 'retried', #held)
if not head or first < tonumber(head) then publish(channel, first) end
return lost
