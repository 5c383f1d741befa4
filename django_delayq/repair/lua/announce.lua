-- Publish the start time of the head of the timeout set: every listener looks at once, and not at its next retry.
--
-- Prelude  clock
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  channel  the head's start time
-- Returns  the start time (epoch ms), or -1 when none waits

local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if not head then return -1 end
publish(KEYS[2], tonumber(head))
return tonumber(head)
