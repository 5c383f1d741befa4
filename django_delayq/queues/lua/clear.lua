-- Delete everything that waits: at once for everybody else, page by page for the server.
--
-- Prelude  clock, count, window, frame, job, unique, list, walk, drop
-- Keys     timeout_set, delay_queue, locators, unique, ended, counters, ranked, cleared
-- Where    cleared: the former timeout set, which is being deleted
-- Args     is_first: 1 until a reply says that the clear has begun
--          batch: frames to delete with one call
-- Reply    has_begun: 1 if the clear has begun with this call
--          found_any: 1 if there was anything
--          left: frames to delete
-- Source   RedissonDelayedQueue.deleteAsync

local now_ms, is_first, batch = math.floor(read_clock() / 1000), args.is_first == '1', tonumber(args.batch)
local waiting, listed = redis.call('ZCARD', keys.timeout_set), redis.call('LLEN', keys.delay_queue)
local unfinished = redis.call('ZCARD', keys.cleared)
check_sets(keys.ranked)
-- An earlier clear may not have come to its end: the rest of it is deleted first.
local begins = is_first and unfinished == 0
local found = begins and waiting + listed > 0

if begins and waiting > 0 then
  if redis.call('HLEN', keys.locators) == 0 then
    -- No job of ours is among them, so there is nothing else to delete.
    redis.call('UNLINK', keys.timeout_set)
  else
    redis.call('RENAME', keys.timeout_set, keys.cleared)
    unfinished = waiting
  end
end
if begins and listed > 0 then
  redis.call('UNLINK', keys.delay_queue)
  redis.call('HDEL', keys.counters, 'sweeping')
end
if unfinished > 0 then
  local frames = read_page(keys.cleared, 'zset', '', '', batch, PAGE_BYTES).frames
  local jobs = jobs_among(keys.locators, frames)
  redis.call('ZREMRANGEBYRANK', keys.cleared, 0, #frames - 1)
  forget_jobs(jobs, 'cancelled', now_ms)
end
return { begins and 1 or 0, found and 1 or 0, redis.call('ZCARD', keys.cleared) }
