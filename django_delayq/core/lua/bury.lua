-- End jobs that failed for good, as dead letters; or put jobs that nobody here can read or run into quarantine.
--
-- Prelude  clock, count, window, frame, list, job, unique, new, follow, forward, held, limit, batch, settle
-- Keys     leases, headers, payloads, graves, errors, unique, counters, slots?limits, held?limits, held_tasks?limits,
--          paces?limits, retries?limits, returned?limits, ranked?limits, control?limits, channel?limits, batches?limits,
--          timeout_set?follow, delay_queue?follow, locators?follow, redisson_channel?follow, ended?follow,
--          forwards?, results...
-- Where    graves: dead or quarantine; slots to batches: only if the queue, or one of its jobs, has a limit, or one is in a batch;
--          timeout_set to ended: only if jobs follow these, and then also ranked, control, retries and returned;
--          forwards: only if jobs follow these into other queues;
--          results: one for each job whose result somebody may wait for, in their order
-- Args     counter: counter to raise: dead or quarantined
--          failed: attempts to add: 1 if an attempt failed
--          forward_count?forwards: number of forwards
--          follower_count?follow: number of jobs that follow
--          follower_format?follow: format of their frames, 1 (dLc0) or 2 (Bc0Lc0)
--          follower_listed?follow: 1: the frames also go into the delay queue
--          jobs... (token, fence, error, ttl_ms, result): error is JSON; ttl_ms says how long to keep the result, empty: there is none
--          forwards... (index, before, behind): see _forward.lua
--          followers... (token, when, tail, payload, index): see _follow.lua
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those. With forwards, now (epoch ms) behind them

local now_us, counter, failed = read_clock(), args.counter, tonumber(args.failed)
local now_ms = math.floor(now_us / 1000)

local jobs_till = #ARGV
if keys.timeout_set then jobs_till = followers_from() - 1 end
if keys.forwards then jobs_till = forwards_from() - 1 end
local held, lost = ours(jobs_till)
if keys.forwards then lost[#lost + 1] = now_ms end
if #held == 0 then return lost end
check_hashes(keys.payloads, keys.errors, keys.unique, keys.counters)
check_sets(keys.graves)
local following
if keys.timeout_set then following = find_followers(by_index(held), now_us) end
if keys.forwards then check_sets(keys.forwards) end
if keys.batches then check_batches() end
if keys.slots then free_slots(held, now_ms) end
redis.call('ZREM', keys.leases, unpack(tokens_of(held)))
local results, kept = {}, #keys
for i = args.jobs, jobs_till, #args.jobs do
  if args.jobs[i].ttl_ms ~= '' then
    kept = kept + 1
    results[i] = KEYS[kept]
  end
end
for _, job in ipairs(held) do
  local tail = without_unique(job.tail)
  if keys.batches then tail = with_batch(tail) end
  release_unique(keys.unique, job.tail, job.token)
  redis.call('HSET', keys.headers, job.token,
    write_job({ attempts = job.attempts + failed, kills = job.kills, start = job.start, tail = tail }))
  redis.call('HSET', keys.errors, job.token, args.jobs[job.at].error)
  if job.claimed then add_attempt(keys.errors, job.token, args.jobs[job.at].error) end
  redis.call('ZADD', keys.graves, now_ms, job.token)
  if results[job.at] then
    -- As for a job that succeeded: somebody may discard this one while its record is still to be kept.
    keep_result(results[job.at], args.jobs[job.at].result, args.jobs[job.at].ttl_ms, redis.call('HGET', keys.payloads, job.token) or '',
      redis.call('HGET', keys.errors, HISTORY .. job.token) or '')
  end
end
add_to(keys.counters, counter, #held)
if keys.batches then leave_batches(held, now_us) end
if keys.timeout_set then store_followers(following, now_ms) end
if keys.forwards then store_forwards(by_index(held), now_ms) end
return lost
