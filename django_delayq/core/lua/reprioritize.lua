-- Give a job that waits another priority. Its id, start time and attempts stay. Safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, unique, find, held
-- Keys     timeout_set, destination, leases, retries, dead, quarantine, headers, locators, ended, returned, held, held_tasks,
--          unique, control, ranked, errors
-- Args     token: of the job
--          priority: -100 to 100
-- Returns  'reprioritized', or the state in which it was left

local now_ms, token, priority = math.floor(read_clock() / 1000), args.token, tonumber(args.priority)

local job = find_job(token, now_ms)
local is_ranked = has_ranks()

if job.waits or is_given_up(job) then
  local old_tail, tail = job.tail, with_priority(job.tail, priority)
  if job.waits == keys.held then
    local name = read_held(redis.call('HGET', keys.errors, token))
    if redis.call('ZREM', keys.held_tasks, held_member(name, job.start, old_tail, token)) == 1 then
      redis.call('ZADD', keys.held_tasks, 0, held_member(name, job.start, tail, token))
    end
  end
  job.tail = tail
  redis.call('HSET', keys.headers, token, write_job(job))
  -- A held job, or one that its dead worker has, gets its rank when it waits for a worker again.
  if job.waits == keys.retries or job.waits == keys.returned then
    local rank_start = job.score > now_ms and job.score or math.min(job.start, job.score)
    add_ranks({ { token = token, tail = tail } }, is_ranked, function() return rank_start end)
  end
elseif job.frame and redis.call('HEXISTS', keys.locators, token) == 1 then
  job.tail = with_priority(job.tail, priority)
  redis.call('HSET', keys.locators, token, write_locator(job))
  add_ranks({ { token = token, tail = job.tail } }, is_ranked, function() return job.start end)
else
  if job.locator and not job.payload and job.state ~= 'unknown' then forget(token, job) end
  return job.state
end
return 'reprioritized'
