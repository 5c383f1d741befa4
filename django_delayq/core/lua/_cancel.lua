-- Prelude: taking jobs that do not run out of a queue.
--
-- Needs _clock, _count, _window, _frame, _list, _job, _unique, _find, _held, _limit, _batch.

-- A job that waits behind another gives the unique key back to it, if that has not ended.
local function return_unique(tail)
  local _, ahead = run_of(tail)
  if not ahead then return end
  local key, job = unique_of(tail):sub(2), job_of(ahead)
  if job and unique_of(job.tail):sub(2) == key then redis.call('HSETNX', keys.unique, key, ahead) end
end

-- Cancels jobs that find_job() has found, and forgets what is left of those that it did not. found: by the position of
-- their tokens. Returns for each 'cancelled'; 'noted' if it lies in a long destination queue; or the state in which it
-- was left. Nothing was written before it is called. each: called with token and payload of what is cancelled, or nil.
local function cancel_found(found, tokens, now_ms, each)
  local frames, replies, is_removal, limited, over = {}, {}, false, {}, {}
  for i, job in ipairs(found) do
    job.waits = job.waits or (is_given_up(job) and keys.leases)
    if job.frame then frames[#frames + 1] = job.frame end
    is_removal = is_removal or job.frame or job.payload or job.waits
    if job.waits and job.state ~= 'held' then add_if_limited(limited, tokens[i], job) end
  end
  if is_removal then
    redis.call('LLEN', keys.delay_queue)
    check_hashes(keys.payloads, keys.errors, keys.unique, keys.counters)
    check_sets(keys.ended, keys.held_tasks, keys.ranked)
    check_batches()
  end
  if #limited > 0 then of_limits().check() end

  -- Writes. Removals first, which a full server does not refuse.
  if #frames > 0 then
    redis.call('ZREM', keys.timeout_set, unpack(frames))
    sweep_tombstones(keys.delay_queue, keys.counters)
    unlist(keys.delay_queue, keys.counters, locate_listed(keys.delay_queue, frames, keys.counters))
  end
  local cancelled = {}
  for i, job in ipairs(found) do
    local token, tail, payload = tokens[i], job.tail, job.payload or job.frame
    if job.waits then
      local name = job.state == 'held' and read_held(redis.call('HGET', keys.errors, token))
      redis.call('ZREM', job.waits, token)
      if name then
        redis.call('ZREM', keys.held_tasks, held_member(name, job.start, tail, token))
        forget_callback(token, name)
      end
      if each then payload = redis.call('HGET', keys.payloads, token) end
      redis.call('HDEL', keys.headers, token)
      redis.call('HDEL', keys.payloads, token)
      forget_errors(keys.errors, { token })
    elseif job.frame or job.payload then
      if job.payload then redis.call('LREM', keys.destination, 1, job.payload) end
      redis.call('HDEL', keys.locators, token)
    elseif job.state == 'unknown' then
      -- Here as well, a removal is first.
      redis.call('HDEL', keys.notes, token)
      redis.call('HSET', keys.notes, token, 'cancel')
      replies[i] = 'noted'
    else
      if job.locator then forget(token, job) end
      replies[i] = job.state
    end
    if not replies[i] then
      release_unique(keys.unique, tail, token)
      return_unique(tail)
      over[#over + 1] = { tail = tail }
      cancelled[#cancelled + 1] = token
      if each then each(token, payload) end
      replies[i] = 'cancelled'
    end
  end
  if #cancelled > 0 then
    redis.call('ZREM', keys.ranked, unpack(cancelled))
    remember(keys.ended, now_ms, 'cancelled', cancelled)
    add_to(keys.counters, 'cancelled', #cancelled)
    leave_batches(over, now_ms * 1000)
  end
  -- Not before: it lets others go on that are held, which may be among those that are cancelled.
  if #limited > 0 then free_slots(limited, now_ms) end
  return replies
end
