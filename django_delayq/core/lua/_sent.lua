-- Prelude: the jobs that somebody may send once more after their own end: rows of a database, by token, and forwards, by
-- token and 15 digits, when the job before them ended. Whoever has removed the row or the forward has them forgotten.
--
-- Needs _clock, _job.

-- A row or a forward may wait for as long as there are no workers.
local SENT_MS = 31536000000
-- How many that are remembered for too long one call forgets, beside as many as it adds.
local FORGOTTEN = 16

local function was_sent(token)
  return redis.call('ZSCORE', keys.sent, token) and 'unknown'
end

-- names: tokens, or those of forwards. Its first write is a removal, which a full server does not refuse.
-- What is noted counts as stored, so whoever cannot store it calls forget_sent().
local function note_sent(names, now_ms)
  check_hashes(keys.unique, keys.counters)
  local members, until_ms = {}, decimal(now_ms + SENT_MS)
  for n, name in ipairs(names) do members[2 * n - 1], members[2 * n] = until_ms, name end
  local over = redis.call('ZCOUNT', keys.sent, '-inf', decimal(now_ms))
  -- Up to rank -1 would be all.
  redis.call('ZREM', keys.sent, '')
  if over > 0 then redis.call('ZREMRANGEBYRANK', keys.sent, 0, math.min(over, #names + FORGOTTEN) - 1) end
  redis.call('ZADD', keys.sent, unpack(members))
end

local function forget_sent(names)
  redis.call('ZREM', keys.sent, unpack(names))
end
