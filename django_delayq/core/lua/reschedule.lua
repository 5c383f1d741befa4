-- Give a job that is not running another start time. Its id, attempts and frame stay. Safe to repeat: the second reply
-- equals the first, even if the job was claimed meanwhile.
--
-- Prelude  clock, count, window, frame, list, job, unique, find, held, limit, batch
-- Keys     timeout_set, redisson_channel, destination, leases, retries, dead, quarantine, headers, payloads, locators,
--          notes, unique, ended, channel, returned, held, held_tasks, errors, ranked, control, slots, paces,
--          batches
-- Args     token: of the job
--          when: wait: '+' ms from now, or '=' epoch ms
--          request: some random characters, the same when the call is repeated
-- Reply    outcome: 'rescheduled'; 'noted' if it lies in a long destination queue, and will be moved unless Java takes it; or the state in
--            which it was left
--          start_ms: the start time; 0 if it was left
--          refusal: the server's error if an ACL closes the channel to us, else ''

local now_us, token, request = read_clock(), args.token, args.request

-- A repeat: the first reply was lost. When that call came is noted beside the jobs that ended, for as long.
local done = redis.call('ZSCORE', keys.ended, request)
if done then return { 'rescheduled', start_time(args.when, (math.floor(tonumber(done) / 8) + 1) * 1000), '' } end

local now_ms, start, refusal = math.floor(now_us / 1000), start_time(args.when, now_us), nil
local job = find_job(token, now_ms)
check_sets(keys.retries, keys.returned, keys.held_tasks)
check_hashes(keys.payloads, keys.errors, keys.batches, keys.unique)
local is_ranked, tail = has_ranks(), job.tail

if job.waits or is_given_up(job) then
  local name = job.state == 'held' and read_held(redis.call('HGET', keys.errors, token))
  local limited = {}
  if not name then add_if_limited(limited, token, job) end
  if #limited > 0 then
    free_slots(limited, now_ms)
    -- At another time, it needs another moment.
    tail = of_limits().with_paid(tail, false)
  end
  local place, waiting = job.waits or keys.leases, waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
  redis.call('ZREM', place, token)
  if name then
    -- It may have been held for long. After its new start time, it can be held for the whole time again.
    redis.call('ZREM', keys.held_tasks, held_member(name, job.start, tail, token))
    redis.call('HDEL', keys.errors, token)
    forget_callback(token, name)
    tail = regain_unique(keys.unique, tail, token)
  end
  redis.call('ZADD', waiting, start, token)
  redis.call('HSET', keys.headers, token, write_job({ attempts = job.attempts, kills = job.kills, start = start, tail = tail }))
  refusal = publish(keys.channel, start)
elseif job.frame then
  local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
  redis.call('ZREM', keys.timeout_set, job.frame)
  redis.call('ZADD', keys.timeout_set, start, job.frame)
  if redis.call('HEXISTS', keys.locators, token) == 1 then
    job.start = start
    redis.call('HSET', keys.locators, token, write_locator(job))
  else
    -- An element that somebody else offered has no rank.
    tail = nil
  end
  if start < tonumber(head) then refusal = publish(keys.redisson_channel, start) end
elseif job.payload then
  redis.call('LREM', keys.destination, 1, job.payload)
  redis.call('HDEL', keys.locators, token)
  redis.call('ZADD', keys.returned, start, token)
  redis.call('HSET', keys.headers, token, write_job({ start = start, tail = tail }))
  redis.call('HSET', keys.payloads, token, job.payload)
  refusal = publish(keys.channel, start)
elseif job.state == 'unknown' then
  -- A removal is first, or a full server would refuse the note.
  redis.call('HDEL', keys.notes, token)
  redis.call('HSET', keys.notes, token, decimal(start))
  return { 'noted', start, '' }
else
  if job.locator then forget(token, job) end
  return { job.state, 0, '' }
end
if tail then add_ranks({ { token = token, tail = tail } }, is_ranked, function() return start end) end
remember(keys.ended, now_ms, 'taken', { request })
return { 'rescheduled', start, refusal or '' }
