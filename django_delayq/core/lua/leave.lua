-- Forget the last request of a process that ends, or of a consumer that wants no more, and what the process said of itself.
--
-- Keys     claims, control
-- Args     owner: 8 bytes that name the process
-- Returns  1 if there was one

redis.call('HDEL', keys.control, 'seen:' .. args.owner, 'code:' .. args.owner)
return redis.call('HDEL', keys.claims, args.owner)
