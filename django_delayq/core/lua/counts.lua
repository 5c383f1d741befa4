-- Count what a queue holds. O(log N), whatever waits.
--
-- Prelude  clock
-- Keys     timeout_set, delay_queue, destination, leases, retries, dead, quarantine, counters, returned, held, control,
--          forwards
-- Reply    frames: in the timeout set
--          due: how many of them are due
--          delay_queue: elements
--          destination: elements
--          leases: jobs
--          retries: jobs
--          dead: jobs
--          quarantined: jobs
--          first_ms: start time of the first that waits for its first attempt, or -1
--          now_ms: the present time
--          returned: jobs
--          returned_due: how many of them are due
--          held: jobs
--          held_till_ms: until when a pause or a limit of the queue held its jobs back
--          forwards: how many jobs are to be forwarded
--          counters...: name and number in turn

local now_ms = math.floor(read_clock() / 1000)
local first = math.huge
for _, set in ipairs({ keys.timeout_set, keys.returned }) do
  local head = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if head then first = math.min(first, tonumber(head)) end
end
return {
  redis.call('ZCARD', keys.timeout_set), redis.call('ZCOUNT', keys.timeout_set, '-inf', now_ms), redis.call('LLEN', keys.delay_queue),
  redis.call('LLEN', keys.destination), redis.call('ZCARD', keys.leases), redis.call('ZCARD', keys.retries), redis.call('ZCARD', keys.dead),
  redis.call('ZCARD', keys.quarantine), first < math.huge and first or -1, now_ms, redis.call('ZCARD', keys.returned),
  redis.call('ZCOUNT', keys.returned, '-inf', now_ms), redis.call('ZCARD', keys.held),
  math.abs(tonumber(redis.call('HGET', keys.control, 'held_till') or 0) or 0), redis.call('ZCARD', keys.forwards),
  redis.call('HGETALL', keys.counters),
}
