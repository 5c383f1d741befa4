-- Take frames out of the delay queue, from its head; they wait on in the timeout set. Ours get the mark that says so. A
-- frame that is only in the list stays, at its tail. A repeated step is done once.
--
-- Prelude  clock, count, window, frame, list, job, mark
-- Keys     timeout_set, delay_queue, locators, counters, control
-- Args     run: name of the run, no spaces
--          step: number of the step, from 1
--          budget: bytes
--          most: frames, at most
-- Reply    status: 'ok', or 'busy' while another run holds the list
--          seen: frames looked at
--          kept: how many of them

local now_ms, run, step = math.floor(read_clock() / 1000), args.run, tonumber(args.step)
local budget, most = tonumber(args.budget), tonumber(args.most)

check_sets(keys.timeout_set)
check_hashes(keys.locators, keys.counters, keys.control)
redis.call('LLEN', keys.delay_queue)
local other = earlier_step(keys.control, run, step, now_ms)
if other then return other end
sweep_tombstones(keys.delay_queue, keys.counters)
read_numbers(keys.counters)

local seen, byte_count, size = 0, 0, 0
local old, members, places, kept = {}, {}, {}, {}
local function look_at(frame)
  local number = own_number(frame)
  local score = redis.call('ZSCORE', keys.timeout_set, frame)
  local twin = number and marked(frame, false, number)
  if score and twin then
    old[#old + 1] = frame
    members[#members + 1], members[#members + 2] = score, twin
    follow_frame(keys.locators, places, frame, twin)
  elseif not score and not (twin and redis.call('ZSCORE', keys.timeout_set, twin)) then
    kept[#kept + 1] = frame
  end
end
while seen < most and byte_count < budget do
  size = math.min(next_size(size, seen, byte_count, budget), most - seen)
  local part = redis.call('LRANGE', keys.delay_queue, seen, seen + size - 1)
  if #part == 0 then break end
  for _, frame in ipairs(part) do
    look_at(frame)
    byte_count = byte_count + #frame
  end
  seen = seen + #part
end

if #old > 0 then
  redis.call('ZREM', keys.timeout_set, unpack(old))
  redis.call('ZADD', keys.timeout_set, unpack(members))
  if #places > 0 then redis.call('HSET', keys.locators, unpack(places)) end
end
if seen > 0 then redis.call('LTRIM', keys.delay_queue, seen, -1) end
if #kept > 0 then redis.call('RPUSH', keys.delay_queue, unpack(kept)) end
redis.call('HSET', keys.control, 'emptied', string.format('%.0f', now_ms))
return end_step(keys.control, run, step, now_ms, seen, #kept)
