-- Move due elements from the timeout set to the destination queue.
--
-- Prelude  clock, count, window, frame, list, job, transfer
-- Keys     timeout_set, delay_queue, destination, locators, quarantine, payloads, errors, counters, control
-- Args     batch: elements
--          budget: bytes
--          seed: 16 random characters, to name what goes into quarantine
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          read_format: the format that the caller reads; if the queue's is later, nothing is moved
-- Reply    moved: elements
--          wait_us: until the next one is due, 0 if more is due now, -1 if no element waits
--          newer_format: the format of the queue, if it is later than the caller reads: then nothing was moved; else 0
-- Source   RedissonDelayedQueue.java, pushTaskAsync

local now_us, batch, budget, seed = read_clock(), math.min(tonumber(args.batch), MOST), tonumber(args.budget), args.seed
local now_ms = math.floor(now_us / 1000)

local queue_format = tonumber(redis.call('HGET', keys.control, 'format') or 0) or 0
if queue_format > tonumber(args.read_format) then return { 0, -1, queue_format } end
redis.call('LLEN', keys.destination)
local due = find_due(keys.timeout_set, keys.delay_queue, now_ms, batch, budget)
if #due > 0 then
  sweep_tombstones(keys.delay_queue, keys.counters)
  transfer_due(plan_transfer(keys.timeout_set, keys.delay_queue, keys.locators, keys.counters, due, args.format), now_ms, seed)
end
local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
return { #due, head and math.max(0, tonumber(head) * 1000 - now_us) or -1, 0 }
