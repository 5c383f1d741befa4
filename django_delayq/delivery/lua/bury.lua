-- End jobs that failed for good: dead letters; or that nobody here can read: quarantine.
--
-- Prelude  clock, count, window, frame, job, settle
-- KEYS[1]  zset  leases: token, score end (epoch ms)
-- KEYS[2]  hash  headers by token
-- KEYS[3]  zset  where to: dead letters or quarantine: token, score when
-- KEYS[4]  hash  errors by token
-- KEYS[5]  hash  unique keys: holder's token
-- KEYS[6]  hash  counters
-- KEYS[7]  and on: list  result, one for each job whose result somebody may wait for, in their order
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  counter to raise: dead, quarantined
-- ARGV[3]  attempts to add, 1 when an attempt failed
-- ARGV[4]  and on, five a job: token; fencing token; error as JSON; how long to keep the result (ms) or empty; result
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, graves, errors, unique, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now_ms, counter, failed = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2], tonumber(ARGV[3])

local held, lost = ours(headers, 4, 5)
if #held == 0 then return lost end
check_hashes(errors, unique, counters)
check_sets(graves)
redis.call('ZREM', leases, unpack(tokens_of(held)))
local results, kept = {}, 6
for i = 4, #ARGV, 5 do
  if ARGV[i + 3] ~= '' then
    kept = kept + 1
    results[i] = KEYS[kept]
  end
end
for _, job in ipairs(held) do
  release_unique(unique, job.key, job.token)
  redis.call('HSET', headers, job.token,
    struct.pack(HEADER, job.attempts + failed, job.kills, job.due, NOBODY, NOBODY))
  redis.call('HSET', errors, job.token, ARGV[job.at + 2])
  redis.call('ZADD', graves, now_ms, job.token)
  if results[job.at] then keep_result(results[job.at], ARGV[job.at + 4], ARGV[job.at + 3]) end
end
add_to(counters, counter, #held)
return lost
