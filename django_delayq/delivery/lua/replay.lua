-- Run a dead letter or a quarantined payload again, from its first attempt.
--
-- Prelude  clock, frame, job
-- KEYS[1]  zset  where it is: dead letters or quarantine: token, score when
-- KEYS[2]  zset  retries: token, score start time (epoch ms)
-- KEYS[3]  hash  headers by token
-- KEYS[4]  hash  payloads by token
-- KEYS[5]  channel  ours: a lease changed
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  wait: '+' ms from now, or '=' epoch ms
-- ARGV[3]  and on: tokens
-- Returns  how many were there

local graves, retries, headers, payloads, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local due, count = start_time(ARGV[2], read_clock(ARGV[1])), 0
check_sets(retries)
check_hashes(headers, payloads)
for i = 3, #ARGV do
  local token = ARGV[i]
  if redis.call('ZREM', graves, token) == 1 and redis.call('HEXISTS', payloads, token) == 1 then
    redis.call('ZADD', retries, due, token)
    redis.call('HSET', headers, token, struct.pack(HEADER, 0, 0, due, NOBODY, NOBODY))
    count = count + 1
  end
end
if count > 0 then redis.call('PUBLISH', channel, decimal(due)) end
return count
