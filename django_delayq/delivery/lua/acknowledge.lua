-- End jobs that ran, or will not run, if their lease is still the caller's.
--
-- Prelude  clock, count, window, frame, job, held, pause, limit, settle
-- Keys     leases, headers, payloads, errors, unique, ended, counters, slots?limits, held?limits, held_tasks?limits,
--          paces?limits, retries?limits, returned?limits, ranked?limits, control?limits, channel?limits, results...
-- Where    slots to channel: only if the queue, or one of its jobs, has a limit; results: one for each job that keeps its
--          result, in their order
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  what became of them: succeeded, expired or taken; missing, if they have run before
-- ARGV[3]  number of jobs
-- ARGV[4]  and on, two a job: token; fencing token; then three for each result to keep: index of its job, from 0; how
--          long to keep it (ms); result
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_ms, state = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]

local results_from = 4 + 2 * tonumber(ARGV[3])
local held, lost = ours(keys.headers, 4, 2, results_from - 1)
if #held == 0 then return lost end
check_hashes(keys.payloads, keys.counters)
local has_errors, old = redis.call('HLEN', keys.errors) > 0, count_forgotten(keys.ended, now_ms)
local tokens, has_keys = tokens_of(held), false
for _, job in ipairs(held) do has_keys = has_keys or job.tail ~= '' end
if has_keys then check_hashes(keys.unique) end
if keys.slots then free_slots(held, now_ms) end
redis.call('ZREM', keys.leases, unpack(tokens))
redis.call('HDEL', keys.headers, unpack(tokens))
redis.call('HDEL', keys.payloads, unpack(tokens))
if has_errors then forget_errors(keys.errors, tokens) end
if has_keys then
  for _, job in ipairs(held) do release_unique(keys.unique, job.tail, job.token) end
end
if state == 'missing' then
  add_to(keys.counters, 'doubles', #held)
else
  remember(keys.ended, now_ms, state, tokens, old)
  add_to(keys.counters, state, #held)
end
if #ARGV >= results_from then
  local is_held, kept = {}, #keys
  for _, job in ipairs(held) do is_held[(job.at - 4) / 2] = true end
  for i = results_from, #ARGV, 3 do
    kept = kept + 1
    if is_held[tonumber(ARGV[i])] then keep_result(KEYS[kept], ARGV[i + 2], ARGV[i + 1]) end
  end
end
return lost
