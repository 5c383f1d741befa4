-- Say that no more jobs come to a batch: once those that came have ended, its callback goes on. Safe to repeat.
--
-- Prelude  clock, window, frame, job, held, batch
-- Keys     batches, held, held_tasks, headers, errors, returned, control, channel, ranked
-- Args     token: token of the callback, the id of the batch
-- Returns  1; 0 if it was closed before, or never begun

local now_us, token = read_clock(), args.token

check_batches()
if redis.call('HDEL', keys.batches, OPEN .. token) == 0 then return 0 end
leave_batches({ { tail = with_batch('', token) } }, now_us)
return 1
