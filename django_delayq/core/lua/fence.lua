-- Write something and take it back. WAIT counts from the caller's last write, and what it asked for may have been
-- written before, by an earlier try or by somebody else.
--
-- Keys     control
-- Returns  1

-- A full server lets a script go on that begins with a command that frees memory.
redis.call('HDEL', keys.control, 'fence')
redis.call('HSET', keys.control, 'fence', 1)
redis.call('HDEL', keys.control, 'fence')
return 1
