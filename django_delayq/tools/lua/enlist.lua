-- Put waiting frames into the delay queue, at its tail, in the order given. Ours get the mark and the next numbers, so
-- that numbers ascend in the list; others go in as they are. A repeated step is done once.
--
-- Prelude  clock, count, window, frame, list, job, mark
-- Keys     timeout_set, delay_queue, locators, counters, control
-- Args     run: name of the run, no spaces
--          step: number of the step, from 1
--          budget: bytes: the frames beyond it are left for another step
--          frames... (start, format, id): start time (epoch ms); format, 1 (dLc0) or 2 (Bc0Lc0); its 8 bytes
-- Reply    status: 'ok', or 'busy' while another run holds the list
--          seen: frames looked at
--          listed: how many of them were put into the list

local now_ms, run, step, budget = math.floor(read_clock() / 1000), args.run, tonumber(args.step), tonumber(args.budget)

check_sets(keys.timeout_set)
check_hashes(keys.locators, keys.counters, keys.control)
redis.call('LLEN', keys.delay_queue)
local other = earlier_step(keys.control, run, step, now_ms)
if other then return other end
sweep_tombstones(keys.delay_queue, keys.counters)

local frames, numbered, byte_count, seen, is_taken = {}, {}, 0, 0, {}
for i = args.frames, #ARGV, #args.frames do
  if byte_count >= budget then break end
  seen = seen + 1
  local frame = find_frame(keys.timeout_set, { start = tonumber(args.frames[i].start), format = tonumber(args.frames[i].format), id = args.frames[i].id })
  -- Two frames with the same 8 bytes have one name; another walk finds the second.
  if frame and not is_taken[frame] then
    is_taken[frame] = true
    frames[#frames + 1] = frame
    byte_count = byte_count + #frame
    -- Also a frame whose number was never given out: it is Java's, or is ours from before the counters were lost.
    -- Should that number be given out later, a mark that does not fit would hide the frame, and it would stay in the
    -- list.
    if not is_foreign(frame) and unpack_frame(frame) then
      numbered[#numbered + 1] = { at = #frames, frame = frame, score = redis.call('ZSCORE', keys.timeout_set, frame) }
    end
  end
end

if #numbered > 0 then
  local number = next_numbers(keys.delay_queue, keys.counters, #numbered, now_ms)
  local old, members, places = {}, {}, {}
  for n, entry in ipairs(numbered) do
    local frame = marked(entry.frame, true, number + n)
    old[n] = entry.frame
    members[2 * n - 1], members[2 * n] = entry.score, frame
    follow_frame(keys.locators, places, entry.frame, frame)
    frames[entry.at] = frame
  end
  redis.call('ZREM', keys.timeout_set, unpack(old))
  redis.call('ZADD', keys.timeout_set, unpack(members))
  if #places > 0 then redis.call('HSET', keys.locators, unpack(places)) end
end
if #frames > 0 then redis.call('RPUSH', keys.delay_queue, unpack(frames)) end
return end_step(keys.control, run, step, now_ms, seen, #frames)
