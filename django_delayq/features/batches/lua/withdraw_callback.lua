-- Undo open.lua: take away the callback of a batch that has got no job. Safe to repeat.
--
-- Prelude  clock, window, frame, job, held, batch
-- Keys     batches, held, held_tasks, headers, payloads, errors
-- Args     token: token of the callback, the id of the batch
-- Returns  1; 0 if the batch was not open, or has jobs

local token = args.token

check_hashes(keys.headers, keys.payloads, keys.errors)
check_sets(keys.held, keys.held_tasks)
local fields = redis.call('HMGET', keys.batches, token, OPEN .. token)
if not fields[2] or fields[1] ~= '1' or not redis.call('ZSCORE', keys.held, token) then return 0 end
local job = job_of(token)
redis.call('HDEL', keys.batches, token, THEN .. token, OPEN .. token)
redis.call('ZREM', keys.held, token)
if job then redis.call('ZREM', keys.held_tasks, held_member(name_of_batch(token), job.start, job.tail, token)) end
redis.call('HDEL', keys.headers, token)
redis.call('HDEL', keys.payloads, token)
redis.call('HDEL', keys.errors, token)
return 1
