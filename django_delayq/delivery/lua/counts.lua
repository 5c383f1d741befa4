-- Count a queue. O(log N), whatever waits.
--
-- Prelude  clock
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  delay queue: frames in arrival order
-- KEYS[3]  list  destination queue
-- KEYS[4]  zset  leases: token, score end (epoch ms)
-- KEYS[5]  zset  retries: token, score start time (epoch ms)
-- KEYS[6]  zset  dead letters: token, score when
-- KEYS[7]  zset  quarantine: token, score when
-- KEYS[8]  hash  counters
-- KEYS[9]  zset  returned, before their first attempt: token, score start time (epoch ms)
-- KEYS[10]  zset  held: token, score until when (epoch ms)
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- Returns  frames in the timeout set; of these due; elements of the delay queue; of the destination queue; leases;
--          retries; dead letters; quarantined; start time of the first that waits for its first attempt (epoch
--          ms) or -1; now (epoch ms); returned; of these due; held; then the counters, name and number in turn

local timeout_set, delay_queue, destination, leases, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead, quarantine, counters, returned, held = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local now_ms = math.floor(read_clock(ARGV[1]) / 1000)
local first = math.huge
for _, set in ipairs({ timeout_set, returned }) do
  local head = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if head then first = math.min(first, tonumber(head)) end
end
local reply = {
  redis.call('ZCARD', timeout_set), redis.call('ZCOUNT', timeout_set, '-inf', now_ms), redis.call('LLEN', delay_queue),
  redis.call('LLEN', destination), redis.call('ZCARD', leases), redis.call('ZCARD', retries), redis.call('ZCARD', dead),
  redis.call('ZCARD', quarantine), first < math.huge and first or -1, now_ms, redis.call('ZCARD', returned),
  redis.call('ZCOUNT', returned, '-inf', now_ms), redis.call('ZCARD', held),
}
for _, item in ipairs(redis.call('HGETALL', counters)) do reply[#reply + 1] = item end
return reply
