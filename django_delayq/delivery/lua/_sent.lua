-- Prelude: the jobs that a queue got because they follow a job of another queue, by token. They are remembered beyond their
-- own end: the other job may run again after it, and send them once more.
--
-- Needs _clock, _job.

local SENT_MS = 604800000
-- How many that are remembered for too long one call forgets, beside as many as it adds.
local FORGOTTEN = 16

local function was_sent(token)
  return redis.call('ZSCORE', keys.sent, token) and 'unknown'
end

-- places: where among the arguments the tokens are. Its first write is a removal, which a full server does not refuse.
local function note_sent(places, now_ms)
  check_hashes(keys.unique, keys.counters)
  local members = {}
  for n, i in ipairs(places) do members[2 * n - 1], members[2 * n] = decimal(now_ms + SENT_MS), ARGV[i] end
  local over = redis.call('ZCOUNT', keys.sent, '-inf', decimal(now_ms))
  -- Up to rank -1 would be all.
  redis.call('ZREM', keys.sent, '')
  if over > 0 then redis.call('ZREMRANGEBYRANK', keys.sent, 0, math.min(over, #places + FORGOTTEN) - 1) end
  redis.call('ZADD', keys.sent, unpack(members))
end
