-- Forget the last request of a process that ends, or of a consumer that wants no more.
--
-- KEYS[1]  hash  claims: the last request of each owner
-- KEYS[2]  hash  control: by owner which formats workers read
-- ARGV[1]  owner, 8 bytes
-- Returns  1 when there was one

redis.call('HDEL', KEYS[2], 'reads:' .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
