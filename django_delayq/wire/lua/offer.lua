-- Store one payload until it is due. Not safe to repeat: nothing tells two equal payloads apart.
--
-- Prelude  clock, count, window, frame, list
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  delay queue: frames in arrival order
-- KEYS[3]  channel  the new head's start time
-- KEYS[4]  hash  counters: the number of the last frame
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  frame format, 1 (dLc0) or 2 (Bc0Lc0)
-- ARGV[3]  1: the frame goes into the delay queue, too
-- ARGV[4]  wait: '+' ms from now, or '=' epoch ms
-- ARGV[5]  payload
-- Returns  start time, epoch ms; where the channel is closed to us, a list of that and what the server said
-- Source   RedissonDelayedQueue.offerAsync, with the server's clock

local timeout_set, delay_queue, channel, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local format, listed, payload = ARGV[2], ARGV[3] == '1', ARGV[5]
local due = start_time(ARGV[4], read_clock(ARGV[1]))

local head = redis.call('ZRANGE', timeout_set, 0, 0, 'WITHSCORES')[2]
redis.call('LLEN', delay_queue)
-- A tombstone left by a script that was stopped halfway would stop Java's.
sweep_tombstones(delay_queue, counters)
-- Numbers are never used twice, but the counter may be lost (a key deleted by hand, half a backup) and Java's
-- random bytes may be anything: a frame that is there already would swallow this element.
local frame
repeat
  frame = pack_frame(format, listed, next_numbers(delay_queue, counters, 1) + 1, payload)
until not redis.call('ZSCORE', timeout_set, frame)
redis.call('ZADD', timeout_set, 'NX', decimal(due), frame)
if listed then redis.call('RPUSH', delay_queue, frame) end
local refusal
if not head or due < tonumber(head) then refusal = publish(channel, due) end
return refusal and { due, refusal } or due
