-- Prelude: the unique keys of a queue: who holds one, freeing it, getting it back. docs/internals.md, "Our keys".
--
-- Needs _window, _frame, _job. The hash `unique` has the token of each key's holder; the tail of a job has its key.

-- Free the unique key of a job, if it holds it.
local function release_unique(unique, tail, token)
  local key = tail and tail ~= '' and unique_of(tail) or ''
  if key ~= '' and redis.call('HGET', unique, key:sub(2)) == token then redis.call('HDEL', unique, key:sub(2)) end
end

-- Free the unique key of a job of which nobody knows whether it ever runs, and return its tail from now on.
local function give_up_unique(unique, tail, token)
  release_unique(unique, tail, token)
  local at = unique_at(tail)
  return tail:byte(at) == 101 and tail:sub(1, at - 1) .. 'E' .. tail:sub(at + 1) or tail
end

-- The tail of such a job when it can run again: it has its unique key back, unless another job has that by now.
local function regain_unique(unique, tail, token)
  local wanted = with_unique(tail)
  if wanted == tail or redis.call('HSETNX', unique, unique_of(wanted):sub(2), token) == 0 then return tail end
  return wanted
end

-- Whether a job that waits is too late to begin, as its tail says, or will be when it is due: then it holds no
-- unique key. Returns also the job that it waits behind. Of keys, retries, returned and leases may be missing; without
-- them, only the clock counts.
local function is_too_late(token, now_ms)
  local due, header = now_ms, redis.call('HGET', keys.headers, token)
  local job = header and read_job(header) or not header and place_of(token)
  if not job then return false end
  local _, ahead, longest, since = run_of(job.tail)
  if not longest then return false end
  if header and job.fence ~= NOBODY then
    -- A lease that ends at 0 is that of a process which is known to be dead.
    if not (keys.leases and redis.call('ZSCORE', keys.leases, token) == '0') then return false end
  elseif header and keys.retries and keys.returned then
    due = tonumber(redis.call('ZSCORE', keys.retries, token) or redis.call('ZSCORE', keys.returned, token) or now_ms)
  end
  if math.max(now_ms, due) <= math.max(job.start, since) + longest then return false end
  return true, ahead
end

-- The holder of a unique key, nil if there is none. A job that is too late has lost the key, to the job that it waits
-- behind if that has it as well; then also true.
local function holder_of(name, now_ms)
  local holder = redis.call('HGET', keys.unique, name)
  if not holder then return nil end
  local is_late, ahead = is_too_late(holder, now_ms)
  if not is_late then return holder end
  local job = ahead and job_of(ahead)
  if not job or unique_of(job.tail):sub(2) ~= name then return nil end
  return ahead, true
end
