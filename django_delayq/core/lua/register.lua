-- Say that a process of a worker lives; forget those that have been silent, and the orders for them.
--
-- Prelude  clock
-- Keys     workers, workers_seen, orders
-- Args     id: id of the process
--          info: what it says of itself
--          kept_ms: how long a silent process is kept (ms)
--          most: processes that the registry takes
-- Reply    now_ms: the present time
--          order: the order that waits for this process, empty if none does
--          seen_ms: when it last said that it lives, -1 if the registry does not have it
--          is_kept: whether the registry has it now

local now_ms, id, kept_ms = math.floor(read_clock() / 1000), args.id, tonumber(args.kept_ms)

local silent = redis.call('ZRANGEBYSCORE', keys.workers_seen, '-inf', '(' .. decimal(now_ms - kept_ms), 'LIMIT', 0, 100)
-- After the clock was set back, the time of a process that has died since may lie ahead.
for _, other in ipairs(redis.call('ZRANGEBYSCORE', keys.workers_seen, '(' .. decimal(now_ms + kept_ms), '+inf', 'LIMIT', 0, 100)) do
  silent[#silent + 1] = other
end
redis.call('HLEN', keys.workers)
local order = redis.call('HGET', keys.orders, id)
local before = redis.call('ZSCORE', keys.workers_seen, id)
local is_full = redis.call('ZCARD', keys.workers_seen) >= tonumber(args.most) and not before

-- First a command that a full server does not refuse.
redis.call('ZREM', keys.workers_seen, '', unpack(silent))
if #silent > 0 then
  redis.call('HDEL', keys.workers, unpack(silent))
  redis.call('HDEL', keys.orders, unpack(silent))
end
local has_room = not is_full or #silent > 0
if has_room then
  redis.call('ZADD', keys.workers_seen, decimal(now_ms), id)
  redis.call('HSET', keys.workers, id, args.info)
end
return { now_ms, order or '', before and tonumber(before) or -1, has_room and 1 or 0 }
