-- Forget the last request of a process that ends, or of a consumer that wants no more, and what the process said of itself.
--
-- Keys     claims, control
-- ARGV[1]  owner, 8 bytes
-- Returns  1 if there was one

redis.call('HDEL', keys.control, 'seen:' .. ARGV[1], 'code:' .. ARGV[1])
return redis.call('HDEL', keys.claims, ARGV[1])
