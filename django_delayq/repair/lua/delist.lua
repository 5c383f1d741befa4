-- Take frames out of the delay queue, from its head, that wait on in the timeout set. Ours get the mark that says so.
-- What is in the list alone stays, at its tail: it is nowhere else. A step that is repeated is done once.
--
-- Prelude  clock, count, window, frame, list, job, mark
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  delay queue: frames in arrival order
-- KEYS[3]  hash  locators by token
-- KEYS[4]  hash  counters
-- KEYS[5]  hash  control: who fills or empties the list, and that it was emptied
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  who does it, no spaces
-- ARGV[3]  number of the step, from 1
-- ARGV[4]  budget, bytes
-- ARGV[5]  frames, at most
-- Returns  'ok', or 'busy' while another is at it; frames looked at; of these kept

local timeout_set, delay_queue, locators, counters, control = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, run, step = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2], tonumber(ARGV[3])
local budget, most = tonumber(ARGV[4]), tonumber(ARGV[5])

check_sets(timeout_set)
check_hashes(locators, counters, control)
redis.call('LLEN', delay_queue)
local other = earlier_step(control, run, step, now_ms)
if other then return other end
sweep_tombstones(delay_queue, counters)
highest = tonumber(redis.call('HGET', counters, 'number') or 0) or 0

local seen, byte_count, size = 0, 0, 0
local old, members, places, kept = {}, {}, {}, {}
local function look_at(frame)
  local number = own_number(frame)
  local score = redis.call('ZSCORE', timeout_set, frame)
  local twin = number and marked(frame, false, number)
  if score and twin then
    old[#old + 1] = frame
    members[#members + 1], members[#members + 2] = score, twin
    follow_frame(locators, places, frame, twin)
  elseif not score and not (twin and redis.call('ZSCORE', timeout_set, twin)) then
    kept[#kept + 1] = frame
  end
end
while seen < most and byte_count < budget do
  size = math.min(next_size(size, seen, byte_count, budget), most - seen)
  local part = redis.call('LRANGE', delay_queue, seen, seen + size - 1)
  if #part == 0 then break end
  for _, frame in ipairs(part) do
    look_at(frame)
    byte_count = byte_count + #frame
  end
  seen = seen + #part
end

if #old > 0 then
  redis.call('ZREM', timeout_set, unpack(old))
  redis.call('ZADD', timeout_set, unpack(members))
  if #places > 0 then redis.call('HSET', locators, unpack(places)) end
end
if seen > 0 then redis.call('LTRIM', delay_queue, seen, -1) end
if #kept > 0 then redis.call('RPUSH', delay_queue, unpack(kept)) end
redis.call('HSET', control, 'emptied', string.format('%.0f', now_ms))
return end_step(control, run, step, now_ms, seen, #kept)
