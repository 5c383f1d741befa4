-- End jobs that ran, or will not run, if their lease is still the caller's.
--
-- Prelude  clock, count, window, frame, list, job, unique, new, follow, forward, held, limit, batch, settle
-- Keys     leases, headers, payloads, errors, unique, ended, counters, slots?limits, held?limits, held_tasks?limits,
--          paces?limits, retries?limits, returned?limits, ranked?limits, control?limits, channel?limits,
--          batches?limits, timeout_set?follow, delay_queue?follow, locators?follow, redisson_channel?follow,
--          forwards?, results...
-- Where    slots to batches: only if the queue, or one of its jobs, has a limit, or one is in a batch; timeout_set to redisson_channel: only if
--          jobs follow these, and then also ranked, control, retries and returned; forwards: only if jobs follow these into
--          other queues; results: one for each job that keeps its result, in their order
-- Args     state: what became of them: succeeded, expired or taken; missing, if they have run before
--          job_count: number of jobs
--          forward_count?forwards: number of forwards
--          follower_count?follow: number of jobs that follow
--          follower_format?follow: format of their frames, 1 (dLc0) or 2 (Bc0Lc0)
--          follower_listed?follow: 1: the frames also go into the delay queue
--          jobs... (token, fence): the jobs, each with its fencing token
--          results... (index, ttl_ms, text): for each result to keep: index of its job, from 0; how long to keep it; the result
--          forwards... (index, before, behind): see _forward.lua
--          followers... (token, when, tail, payload, index): see _follow.lua
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those. With forwards, now (epoch ms) behind them

local now_us, state = read_clock(), args.state
local now_ms = math.floor(now_us / 1000)

local results_from, results_till = args.jobs + #args.jobs * tonumber(args.job_count), #ARGV
if keys.timeout_set then results_till = followers_from() - 1 end
if keys.forwards then results_till = forwards_from() - 1 end
local held, lost = ours(results_from - 1)
if keys.forwards then lost[#lost + 1] = now_ms end
if #held == 0 then return lost end
check_hashes(keys.payloads, keys.counters)
local has_errors, old = redis.call('HLEN', keys.errors) > 0, count_forgotten(keys.ended, now_ms)
local tokens, has_keys = tokens_of(held), false
for _, job in ipairs(held) do has_keys = has_keys or job.tail ~= '' end
if has_keys then check_hashes(keys.unique) end
local following
if keys.timeout_set then following = find_followers(by_index(held), now_us) end
-- With its result, the payload of a job and the attempts behind it are kept.
local records = {}
if results_till >= results_from then
  local found = by_index(held)
  for i = results_from, results_till, #args.results do
    local job = found[tonumber(args.results[i].index)]
    if job then
      records[i] = { redis.call('HGET', keys.payloads, job.token) or '',
        has_errors and redis.call('HGET', keys.errors, HISTORY .. job.token) or '' }
    end
  end
end
if keys.forwards then check_sets(keys.forwards) end
if keys.batches then check_batches() end
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
if keys.timeout_set then store_followers(following, now_ms) end
if keys.forwards then store_forwards(by_index(held), now_ms) end
if keys.batches then leave_batches(held, now_us) end
local kept = #keys
for i = results_from, results_till, #args.results do
  kept = kept + 1
  if records[i] then keep_result(KEYS[kept], args.results[i].text, args.results[i].ttl_ms, unpack(records[i])) end
end
return lost
