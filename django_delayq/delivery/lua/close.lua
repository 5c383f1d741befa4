-- Say that no more jobs come to a batch, and keep its callback until they have ended; if they have, let it go on at once.
-- Safe to repeat.
--
-- Prelude  clock, window, frame, job, held, batch
-- Keys     batches, held, held_tasks, headers, payloads, errors, returned, control, channel, ranked, ended
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  token of the callback, the id of the batch
-- ARGV[3]  when it starts after the last end: '+' ms, or '=' epoch ms
-- ARGV[4]  its tail
-- ARGV[5]  its payload
-- ARGV[6]  why it is held
-- Returns  1 if the batch is closed now, 0 if it was before; jobs that have not ended; when the callback starts (epoch
--          ms), -1 while that is open

local now_us, token, when, tail = read_clock(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local now_ms = math.floor(now_us / 1000)
local left = tonumber(redis.call('HGET', keys.batches, token) or 0) or 0

if redis.call('HEXISTS', keys.headers, token) == 1 or how_ended(keys.ended, now_ms, token) then return { 0, left, -1 } end

check_batches()
check_hashes(keys.payloads)
local is_ranked, due, start = has_ranks(), start_time(when, now_us), now_ms
if left <= 0 or when:byte(1) == 61 then start = due end
-- A full server refuses no removal, and a script that begins with one.
redis.call('HDEL', keys.errors, token)
redis.call('HSET', keys.payloads, token, ARGV[5])
redis.call('HSET', keys.headers, token, struct.pack(HEADER, 0, 0, start, NOBODY, NOBODY) .. tail)
if left > 0 then
  local name = name_of_batch(token)
  redis.call('HSET', keys.batches, THEN .. token, when)
  redis.call('ZADD', keys.held, now_ms + FOR_EVER, token)
  redis.call('ZADD', keys.held_tasks, 0, held_member(name, start, token))
  redis.call('HSET', keys.errors, token, held_error(name, ARGV[6], now_ms))
  return { 1, left, -1 }
end
redis.call('HDEL', keys.batches, token)
redis.call('ZADD', keys.returned, due, token)
add_ranks({ { token = token, tail = tail } }, is_ranked, function() return due end)
publish(keys.channel, due)
return { 1, 0, due }
