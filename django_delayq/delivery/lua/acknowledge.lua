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
-- ARGV[3]  number of jobs
-- ARGV[4]  and on, two a job: token; fencing token; then three a result that is kept: index of its job, from 0; how
--          long to keep it (ms); result
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, payloads, errors, unique = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ended, counters = KEYS[6], KEYS[7]
local now_ms, outcome = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]

local results_from = 4 + 2 * tonumber(ARGV[3])
local held, lost = ours(headers, 4, 2, results_from - 1)
if #held == 0 then return lost end
check_hashes(payloads, counters)
local has_errors, old = redis.call('HLEN', errors) > 0, count_forgotten(ended, now_ms)
local tokens, has_keys = tokens_of(held), false
for _, job in ipairs(held) do has_keys = has_keys or job.key ~= '' end
if has_keys then check_hashes(unique) end
redis.call('ZREM', leases, unpack(tokens))
redis.call('HDEL', headers, unpack(tokens))
redis.call('HDEL', payloads, unpack(tokens))
if has_errors then redis.call('HDEL', errors, unpack(tokens)) end
if has_keys then
  for _, job in ipairs(held) do release_unique(unique, job.key, job.token) end
end
if outcome == 'missing' then
  add_to(counters, 'doubles', #held)
else
  remember(ended, now_ms, outcome, tokens, old)
  add_to(counters, outcome, #held)
end
if #ARGV >= results_from then
  local is_held, kept = {}, 7
  for _, job in ipairs(held) do is_held[(job.at - 4) / 2] = true end
  for i = results_from, #ARGV, 3 do
    kept = kept + 1
    if is_held[tonumber(ARGV[i])] then keep_result(KEYS[kept], ARGV[i + 2], ARGV[i + 1]) end
  end
end
return lost
