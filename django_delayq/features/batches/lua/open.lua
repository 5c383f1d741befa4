-- Begin a batch: keep its callback, held until all jobs of the batch have ended and close.lua has said that no more come.
-- Safe to repeat.
--
-- Prelude  clock, window, frame, job, held, batch
-- Keys     batches, held, held_tasks, headers, payloads, errors, ended, control, ranked
-- Args     token: token of the callback, the id of the batch
--          when: when it starts after the last end: '+' ms, or '=' epoch ms
--          tail: its tail
--          payload: its payload
--          why: why it is held
--          shards: how many shards the queue has; 0: none
-- Returns  1; 0 if the batch was begun before

local now_us, token, when = read_clock(), args.token, args.when
local now_ms = math.floor(now_us / 1000)

if redis.call('HEXISTS', keys.batches, OPEN .. token) == 1 or redis.call('HEXISTS', keys.headers, token) == 1
    or how_ended(keys.ended, now_ms, token) then
  return 0
end

local start, name = when:byte(1) == 61 and start_time(when, now_us) or now_ms, name_of_batch(token)
check_hashes(keys.payloads, keys.errors)
check_sets(keys.held, keys.held_tasks)
local _, pin = has_ranks()
if pin and pin:match('^%d+') ~= args.shards then return redis.error_reply('OTHERSHARDS the queue has another number of shards') end
redis.call('HSET', keys.headers, token, write_job({ start = start, tail = args.tail }))
redis.call('HSET', keys.payloads, token, args.payload)
redis.call('HSET', keys.errors, token, held_error(name, args.why, now_ms))
redis.call('ZADD', keys.held, now_ms + FOR_EVER, token)
redis.call('ZADD', keys.held_tasks, 0, held_member(name, start, args.tail, token))
redis.call('HSET', keys.batches, THEN .. token, when, OPEN .. token, 1)
-- Until it is closed, the batch counts one more than its jobs.
redis.call('HINCRBY', keys.batches, token, 1)
return 1
