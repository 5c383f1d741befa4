-- Leave an order for a process of a worker, in the place of any other.
--
-- Prelude  clock
-- Keys     workers_seen, orders
-- Args     id: id of the process
--          order: what it is to do
--          kept_ms: how long a silent process is kept (ms)
-- Returns  1; 0 if the process is not there

local now_ms = math.floor(read_clock() / 1000)
local seen = tonumber(redis.call('ZSCORE', keys.workers_seen, args.id) or nil)
if not seen or seen < now_ms - tonumber(args.kept_ms) then return 0 end
redis.call('HSET', keys.orders, args.id, args.order)
return 1
