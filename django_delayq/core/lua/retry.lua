-- End attempts whose jobs run again later: they failed, or they snooze, which counts as nothing. A job waits among the
-- retries; if it snoozes before any attempt has failed, it waits among the returned.
--
-- Prelude  clock, count, window, frame, job, held, limit, settle
-- Keys     leases, headers, retries, errors, counters, channel, returned, ranked, control, slots?limits, held?limits,
--          held_tasks?limits, paces?limits
-- Where    slots to paces: only if the queue, or one of its jobs, has a limit
-- Args     failed: attempts to add: 1 if they failed, 0 if they snooze
--          jobs... (token, fence, when, error): token; fencing token; wait: '+' ms from now, or '=' epoch ms; error as JSON, or empty if
--            they snooze
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_us, failed = read_clock(), tonumber(args.failed)
local now_ms = math.ceil(now_us / 1000)

local held, lost = ours()
if #held == 0 then return lost end
check_hashes(keys.errors, keys.counters)
local is_ranked = has_ranks()
local head = tonumber(redis.call('ZRANGE', keys.retries, 0, 0, 'WITHSCORES')[2] or math.huge)
if failed == 0 then
  head = math.min(head, tonumber(redis.call('ZRANGE', keys.returned, 0, 0, 'WITHSCORES')[2] or math.huge))
end
local first = math.huge
for _, job in ipairs(held) do
  -- '+100' is a number to Lua, '=100' is none.
  local when = args.jobs[job.at].when
  local wait_ms = tonumber(when)
  job.due = wait_ms and now_ms + wait_ms or start_time(when, now_us)
  first = math.min(first, job.due)
end
if keys.slots then free_slots(held, now_ms) end
redis.call('ZREM', keys.leases, unpack(tokens_of(held)))
for _, job in ipairs(held) do
  local attempts, waiting = job.attempts + failed, keys.retries
  if failed == 0 then waiting = waiting_set(keys.retries, keys.returned, attempts, job.kills) end
  redis.call('ZADD', waiting, job.due, job.token)
  redis.call('HSET', keys.headers, job.token,
    write_job({ attempts = attempts, kills = job.kills, start = job.start, tail = job.tail }))
  if failed == 1 then
    redis.call('HSET', keys.errors, job.token, args.jobs[job.at].error)
    if job.claimed then add_attempt(keys.errors, job.token, args.jobs[job.at].error) end
  end
end
add_ranks(held, is_ranked, function(job) return job.due end)
add_to(keys.counters, failed == 1 and 'retried' or 'snoozed', #held)
if first < head then publish(keys.channel, first) end
return lost
