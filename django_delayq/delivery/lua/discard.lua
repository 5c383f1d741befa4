-- Delete dead letters or quarantined payloads for good.
--
-- KEYS[1]  zset  where they are: dead letters or quarantine: token, score when
-- KEYS[2]  hash  headers by token
-- KEYS[3]  hash  payloads by token
-- KEYS[4]  hash  errors by token
-- ARGV[1]  and on: tokens
-- Returns  how many were there

local graves, headers, payloads, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local count = 0
for i = 1, #ARGV do
  if redis.call('ZREM', graves, ARGV[i]) == 1 then
    redis.call('HDEL', headers, ARGV[i])
    redis.call('HDEL', payloads, ARGV[i])
    redis.call('HDEL', errors, ARGV[i])
    count = count + 1
  end
end
return count
