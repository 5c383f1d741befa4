-- Run a dead letter or a quarantined payload again, from its first attempt. Safe to repeat.
--
-- Prelude  clock, window, frame, job
-- KEYS[1]  zset  where it is: dead letters or quarantine: token, score when
-- KEYS[2]  zset  returned, before their first attempt: token, score start time (epoch ms)
-- KEYS[3]  hash  headers by token
-- KEYS[4]  hash  payloads by token
-- KEYS[5]  channel  ours: a lease changed
-- KEYS[6]  zset  ended: token, score epoch ms * 8 + outcome
-- KEYS[7]  hash  errors by token
-- KEYS[8]  and on: list  result, one a token: the failure that those who wait were to see
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  wait: '+' ms from now, or '=' epoch ms
-- ARGV[3]  request: some random characters, the same when the call is repeated
-- ARGV[4]  and on: tokens
-- Returns  how many were there, without those whose payload is gone, which are forgotten; where the channel is
--          closed to us, a list of that and what the server said

local graves, returned, headers, payloads, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ended, errors = KEYS[6], KEYS[7]
local now_us, request = read_clock(ARGV[1]), ARGV[3]
local due, notes = start_time(ARGV[2], now_us), {}

-- A repeat: its reply was lost. What it did is noted beside the jobs that ended, for as long.
local done = noted(ended, request, #ARGV - 3)
if done > 0 then return done end

check_sets(returned)
check_hashes(headers, payloads, errors)
for i = 4, #ARGV do
  local token = ARGV[i]
  local is_there = redis.call('ZREM', graves, token) == 1
  if is_there and redis.call('HEXISTS', payloads, token) == 1 then
    local result = KEYS[i + 4]
    redis.call('DEL', result)
    redis.call('ZADD', returned, due, token)
    redis.call('HSET', headers, token, struct.pack(HEADER, 0, 0, due, NOBODY, NOBODY))
    notes[#notes + 1] = request .. '-' .. (#notes + 1)
  elseif is_there then
    redis.call('HDEL', headers, token)
    redis.call('HDEL', errors, token)
  end
end
if #notes == 0 then return 0 end
remember(ended, math.floor(now_us / 1000), 'taken', notes)
local refusal = publish(channel, due)
return refusal and { #notes, refusal } or #notes
