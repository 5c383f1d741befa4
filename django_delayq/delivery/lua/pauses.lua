-- Read what is paused on a queue.
--
-- Prelude  clock
-- Keys     control
-- Args     now_us: epoch us; empty: the server's TIME (tests pass their own)
-- Returns  now, epoch ms; the pause of the queue, and those of its tasks, as they are stored, nil where there is none

local fields = redis.call('HMGET', keys.control, 'paused', 'paused_tasks')
return { math.floor(read_clock(args.now_us) / 1000), fields[1], fields[2] }
