-- Leave an order for a process of a worker, in the place of any other.
--
-- Prelude  clock
-- Keys     workers_seen, orders
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  id of the process
-- ARGV[3]  the order
-- ARGV[4]  how long a silent process is kept (ms)
-- Returns  1; 0 if the process is not there

local now_ms = math.floor(read_clock(ARGV[1]) / 1000)
local seen = tonumber(redis.call('ZSCORE', keys.workers_seen, ARGV[2]) or nil)
if not seen or seen < now_ms - tonumber(ARGV[4]) then return 0 end
redis.call('HSET', keys.orders, ARGV[2], ARGV[3])
return 1
