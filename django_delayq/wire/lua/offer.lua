-- Store one payload until it is due. Not safe to repeat, as two equal payloads look the same.
--
-- Prelude  clock, count, window, frame, list
-- Keys     timeout_set, delay_queue, channel, counters
-- Args     format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: the frame also goes into the delay queue
--          when: wait: '+' ms from now, or '=' epoch ms
--          payload: as it is stored
-- Returns  start time, epoch ms; if an ACL closes the channel to us, a list of the start time and the server's error
-- Source   RedissonDelayedQueue.offerAsync, with the server's clock

local format, listed, payload = args.format, args.listed == '1', args.payload
local now_us = read_clock()
local start = start_time(args.when, now_us)

local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
redis.call('LLEN', keys.delay_queue)
-- A tombstone, left by a script that was stopped halfway, would stop Java's scripts.
sweep_tombstones(keys.delay_queue, keys.counters)
-- Numbers are never used twice. But the counter may be lost (a key deleted by hand, half a backup), and Java's random
-- bytes may be anything; and an equal frame that is there already would swallow this element.
local frame
repeat
  frame = pack_frame(format, listed, next_numbers(keys.delay_queue, keys.counters, 1, math.floor(now_us / 1000)) + 1, payload)
until not redis.call('ZSCORE', keys.timeout_set, frame)
redis.call('ZADD', keys.timeout_set, 'NX', decimal(start), frame)
if listed then redis.call('RPUSH', keys.delay_queue, frame) end
local refusal
if not head or start < tonumber(head) then refusal = publish(keys.channel, start) end
return refusal and { start, refusal } or start
