-- End jobs: they ran, or will not run. Only for those whose lease is still the caller's.
--
-- Prelude  clock, count, window, frame, job, settle
-- KEYS[1]  zset  leases: token, score end (epoch ms)
-- KEYS[2]  hash  headers by token
-- KEYS[3]  hash  payloads by token
-- KEYS[4]  hash  errors by token
-- KEYS[5]  hash  unique keys: holder's token
-- KEYS[6]  zset  ended: token, score epoch ms * 8 + outcome
-- KEYS[7]  hash  counters
-- KEYS[8]  and on: list  result, one for each job that keeps its result, in their order
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  outcome: succeeded, expired, taken
-- ARGV[3]  and on, four a job: token; fencing token; how long to keep the result (ms) or empty; result
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, payloads, errors, unique = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ended, counters = KEYS[6], KEYS[7]
local now_ms, outcome = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]

local held, lost = ours(headers, 3, 4)
if #held == 0 then return lost end
check_hashes(payloads, errors, unique, counters)
check_sets(ended)
local tokens = tokens_of(held)
redis.call('ZREM', leases, unpack(tokens))
redis.call('HDEL', headers, unpack(tokens))
redis.call('HDEL', payloads, unpack(tokens))
redis.call('HDEL', errors, unpack(tokens))
for _, job in ipairs(held) do release_unique(unique, job.key, job.token) end
remember(ended, now_ms, outcome, tokens)
add_to(counters, outcome, #held)
local results, kept = {}, 7
for i = 3, #ARGV, 4 do
  if ARGV[i + 2] ~= '' then
    kept = kept + 1
    results[i] = KEYS[kept]
  end
end
for _, job in ipairs(held) do
  if results[job.at] then keep_result(results[job.at], ARGV[job.at + 3], ARGV[job.at + 2]) end
end
return lost
