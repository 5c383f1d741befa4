-- Move due elements from the timeout set to the destination queue.
--
-- Prelude  clock, count, window, frame, list, job, transfer
-- Keys     timeout_set, delay_queue, destination, locators, quarantine, payloads, errors, counters, control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  batch, elements
-- ARGV[3]  budget, bytes
-- ARGV[4]  16 random characters, to name what goes into quarantine
-- ARGV[5]  format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
-- ARGV[6]  the format that the caller reads; if the queue's is later, nothing is moved
-- Returns  elements moved; us until the next one is due, 0 if more is due now, -1 if no element waits; then the format
--          of the queue, if it is later than the caller reads
-- Source   RedissonDelayedQueue.java, pushTaskAsync

local now_us, batch, budget, seed = read_clock(ARGV[1]), math.min(tonumber(ARGV[2]), MOST), tonumber(ARGV[3]), ARGV[4]
local now_ms = math.floor(now_us / 1000)

local queue_format = tonumber(redis.call('HGET', keys.control, 'format') or 0) or 0
if queue_format > tonumber(ARGV[6]) then return { 0, -1, queue_format } end
redis.call('LLEN', keys.destination)
local due = find_due(keys.timeout_set, keys.delay_queue, now_ms, batch, budget)
if #due > 0 then
  sweep_tombstones(keys.delay_queue, keys.counters)
  transfer_due(plan_transfer(keys.timeout_set, keys.delay_queue, keys.locators, keys.counters, due, ARGV[5]), now_ms, seed)
end
local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
return { #due, head and math.max(0, tonumber(head) * 1000 - now_us) or -1 }
