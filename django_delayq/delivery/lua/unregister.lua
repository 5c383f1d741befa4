-- Forget a process of a worker, which ends, and the order for it.
--
-- Keys     workers, workers_seen, orders
-- ARGV[1]  id of the process
-- Returns  nil

redis.call('HLEN', keys.workers)
redis.call('HLEN', keys.orders)
redis.call('ZREM', keys.workers_seen, ARGV[1])
redis.call('HDEL', keys.workers, ARGV[1])
redis.call('HDEL', keys.orders, ARGV[1])
return nil
