-- Forget a process of a worker, which ends, and the order for it.
--
-- Keys     workers, workers_seen, orders
-- Args     id: id of the process
-- Returns  nil

redis.call('HLEN', keys.workers)
redis.call('HLEN', keys.orders)
redis.call('ZREM', keys.workers_seen, args.id)
redis.call('HDEL', keys.workers, args.id)
redis.call('HDEL', keys.orders, args.id)
return nil
