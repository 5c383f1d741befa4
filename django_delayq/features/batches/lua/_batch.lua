-- Prelude: jobs that belong together, and one job, the callback, that starts once all of them have ended.
-- docs/internals.md, "Batches".
--
-- Needs _clock, _job, _held. The id of a batch is the token of its callback. Each job of a batch has that in its tail, until
-- it ends. The callback is held for the batch. The hash of batches has up to three fields for each
-- id: how many jobs of it have not ended, and one more while it is open; THEN and the id: when the callback starts after
-- that, as a wait; OPEN and the id while more jobs may come.

local THEN = 'then:'
local OPEN = 'open:'

local function name_of_batch(batch)
  return reason_of('batch', batch)
end

-- To be called before the first write.
local function check_batches()
  check_hashes(keys.batches, keys.headers, keys.errors, keys.control)
  check_sets(keys.held, keys.held_tasks, keys.returned, keys.ranked)
end

-- Lets the callback go on, unless it was cancelled, or somebody has started it: then it is not held for its batch.
local function start_callback(token, when, now_us, is_ranked)
  local job = job_of(token)
  if not job then return end
  local member = held_member(name_of_batch(token), job.start, job.tail, token)
  if redis.call('ZREM', keys.held_tasks, member) == 0 or redis.call('ZREM', keys.held, token) == 0 then return end
  local due = start_time(when, now_us)
  redis.call('HDEL', keys.errors, token)
  redis.call('HSET', keys.headers, token, write_job({ start = due, tail = job.tail }))
  redis.call('ZADD', keys.returned, due, token)
  add_ranks({ job }, is_ranked, function() return due end)
  publish(keys.channel, due)
end

-- The batches of jobs, each with .tail, in their order; and how many of the jobs are in each.
local function count_batches(jobs)
  local batches, counts = {}, {}
  for _, job in ipairs(jobs) do
    local batch = job.tail and batch_of(job.tail)
    if batch then
      if not counts[batch] then batches[#batches + 1] = batch end
      counts[batch] = (counts[batch] or 0) + 1
    end
  end
  return batches, counts
end

-- Counts jobs out that have ended. jobs: each with .tail.
local function leave_batches(jobs, now_us)
  local batches, leaving = count_batches(jobs)
  if #batches == 0 then return end
  local is_ranked = has_ranks()
  for _, batch in ipairs(batches) do
    -- If somebody has spoilt or deleted the number, the callback stays held until somebody starts it.
    local left = redis.pcall('HINCRBY', keys.batches, batch, -leaving[batch])
    if type(left) == 'number' and left <= 0 then
      redis.call('HDEL', keys.batches, batch)
      local when = left == 0 and redis.call('HGET', keys.batches, THEN .. batch)
      if when then
        redis.call('HDEL', keys.batches, THEN .. batch)
        start_callback(batch, when, now_us, is_ranked)
      end
    end
  end
end

-- Closes the batch of a callback that somebody takes away from it. name: what the callback is held under.
local function forget_callback(token, name)
  if name ~= name_of_batch(token) then return end
  redis.call('HDEL', keys.batches, THEN .. token)
  if redis.call('HDEL', keys.batches, OPEN .. token) == 0 then return end
  local left = redis.pcall('HINCRBY', keys.batches, token, -1)
  if type(left) == 'number' and left <= 0 then redis.call('HDEL', keys.batches, token) end
end

-- Counts new jobs of the list `jobs` in. places: where they begin.
local function join_batches(places)
  local jobs = {}
  for n, i in ipairs(places) do jobs[n] = { tail = args.jobs[i].tail } end
  local batches, joining = count_batches(jobs)
  -- The jobs are stored by now. With a number that somebody has spoilt, the callback stays held.
  for _, batch in ipairs(batches) do redis.pcall('HINCRBY', keys.batches, batch, joining[batch]) end
end
