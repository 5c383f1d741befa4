-- Publish the start time of the head of the timeout set, so that every listener looks at once, not at its next retry.
--
-- Prelude  clock
-- Keys     timeout_set, redisson_channel
-- Returns  the start time (epoch ms), or -1 if no frame waits

local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
if not head then return -1 end
publish(keys.redisson_channel, tonumber(head))
return tonumber(head)
