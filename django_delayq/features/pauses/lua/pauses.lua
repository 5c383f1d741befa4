-- Read what is paused on a queue.
--
-- Prelude  clock
-- Keys     control
-- Reply    now_ms: the present time
--          of_queue: the pause of the queue, as it is stored, nil if there is none
--          of_tasks: those of its tasks, likewise

local fields = redis.call('HMGET', keys.control, 'paused', 'paused_tasks')
return { math.floor(read_clock() / 1000), fields[1], fields[2] }
