-- Prelude: taking frames out for good before they are due.
--
-- Needs _clock, _count, _window, _frame, _list, _job, _unique. drop() reads all it has to know before its first write, and
-- begins with removals.

-- Returns what we know of the frames that are jobs of ours. To be called before the first write.
local function jobs_among(locators, frames)
  local tokens, tails = {}, {}
  for _, frame in ipairs(frames) do
    local payload, id = unpack_frame(frame)
    local token = payload and token_of(payload)
    local place = token and read_locator(redis.call('HGET', locators, token))
    -- A copy that somebody offered by hand is not the job.
    if place and place.id == id and is_located(place, token, payload) then
      tokens[#tokens + 1] = token
      tails[#tails + 1] = place.tail
    end
  end
  return { tokens = tokens, tails = tails }
end

local function forget_jobs(jobs, outcome, now_ms)
  if #jobs.tokens == 0 then return end
  redis.call('HDEL', keys.locators, unpack(jobs.tokens))
  redis.call('ZREM', keys.ranked, unpack(jobs.tokens))
  for i, token in ipairs(jobs.tokens) do release_unique(keys.unique, jobs.tails[i], token) end
  -- A schedule that is repeated because its reply was lost must not bring them back.
  remember(keys.ended, now_ms, outcome, jobs.tokens)
  add_to(keys.counters, outcome, #jobs.tokens)
end

-- plan: where the frames are in the delay queue, as locate_listed() returns it. Returns the jobs among the frames.
local function drop(frames, plan, outcome, now_ms)
  if #frames == 0 then return end
  check_sets(keys.ranked)
  local jobs = jobs_among(keys.locators, frames)
  redis.call('ZREM', keys.timeout_set, unpack(frames))
  unlist(keys.delay_queue, keys.counters, plan)
  forget_jobs(jobs, outcome, now_ms)
  return jobs
end
