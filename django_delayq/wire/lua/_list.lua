-- Prelude: taking frames out of the delay queue, Redisson's list of all that was offered.
--
-- Needs _clock, _count, _window, _frame. Redisson pays an LREM, a scan from the head, for each frame. Our frames are
-- numbered in list order, so an interpolation search finds their indexes. A run of frames at either end is cut off.
-- Each other frame is overwritten by a tombstone; then one LREM from the head and one from the tail take all tombstones
-- out. That is one scan of the list at most, whatever their number and order. locate_listed() only reads, unlist() only
-- writes: nothing between the first LSET and the LREM can fail. Should the server stop there all the same, the next
-- script finds the flag.

local TOMBSTONE = '\0'
-- Elements to either side of a guess: one read takes them all.
local WINDOW = math.floor((WIDEST - 1) / 2)
local WINDOW_BYTES = 65536
local SEARCHES = 40
local READ_ON = 32

local function sweep_tombstones(delay_queue, counters)
  if redis.call('HEXISTS', counters, 'sweeping') == 1 then
    redis.call('LREM', delay_queue, 0, TOMBSTONE)
    redis.call('HDEL', counters, 'sweeping')
  end
end

-- Returns the number before the first of `count` numbers, never used before, that the next frames may carry. A counter
-- that is new or was lost begins above all numbers that a queue can have given out by now, four a millisecond since
-- 1970, and above the last one in the list, as a clock may have stepped back. Otherwise the list is not read: a frame
-- of Java's that carries our mark, at the end of the list, would spoil the counter, and `own_number` with it.
local function next_numbers(delay_queue, counters, count, now_ms)
  local number = add_to(counters, 'number', count) - count
  if number > 0 and number < UNLIKELY then return number end
  number = 4 * now_ms
  local last = redis.call('LINDEX', delay_queue, -1)
  local listed = last and listed_number(last)
  if listed and listed < UNLIKELY then number = math.max(number, listed) end
  redis.call('HSET', counters, 'number', decimal(number + count), 'first', decimal(number))
  return number
end

-- The numbers given out since the counter began. Any other number stands in one of 65,536 frames of Java's, or comes
-- from a counter that was lost; then LREM finds its frame as it finds Java's.
local lowest, highest = 0, math.huge

local function read_numbers(counters)
  local fields = redis.call('HMGET', counters, 'first', 'number')
  lowest, highest = tonumber(fields[1] or 0) or 0, tonumber(fields[2] or 0) or 0
end

local function is_ours(number)
  return number and number > lowest and number <= highest
end

local function own_number(frame)
  local number = listed_number(frame)
  if is_ours(number) then return number end
  return nil
end

-- A search reads at most so many bytes of frames that it does not look for.
local SEARCH_BYTES = 1048576
-- The elements and bytes read so far.
local searched, searched_bytes = 0, 0

-- Returns a part of the list, with its first and last numbered frames, or nil if no frame of ours lies in it; and the
-- last index read. Frames in between may be huge: the sizes seen so far say how many are read at a time, and the part
-- ends early once it has many bytes.
local function open_window(delay_queue, from, to)
  local part, byte_count = {}, 0
  local window = { from = from, part = part }
  while #part <= to - from and byte_count < WINDOW_BYTES do
    local size = 1
    if searched > 0 then
      size = math.max(1, math.min(WIDEST, math.floor((WINDOW_BYTES - byte_count) * searched / searched_bytes)))
    end
    local read = redis.call('LRANGE', delay_queue, from + #part, math.min(to, from + #part + size - 1))
    if #read == 0 then break end
    for _, frame in ipairs(read) do
      part[#part + 1] = frame
      byte_count = byte_count + #frame
      searched_bytes = searched_bytes + #frame
    end
    searched = searched + #read
  end
  local last_read = from + #part - 1
  for i = 1, #part do
    local number = own_number(part[i])
    if number then
      window.first, window.first_number = i, number
      break
    end
  end
  if not window.first then return nil, last_read end
  for i = #part, 1, -1 do
    local number = own_number(part[i])
    if number then
      window.last, window.last_number = i, number
      return window, last_read
    end
  end
end

-- The place of a number in a window, counted from 1, or nil. Numbers ascend, with foreign frames between them.
local function find_in_window(window, number, frame)
  local span = window.last_number - window.first_number
  local at = window.first
  if span > 0 then at = at + math.floor((number - window.first_number) * (window.last - at) / span) end
  if window.part[at] == frame then return at end
  local found = own_number(window.part[at])
  while not found do
    at = at - 1
    found = own_number(window.part[at])
  end
  local step = found < number and 1 or -1
  while found ~= number do
    at = at + step
    if at < window.first or at > window.last then return nil end
    found = own_number(window.part[at])
    if found and (step == 1 and found > number or step == -1 and found < number) then return nil end
  end
  return at
end

-- Foreign frames carry no number. A few are left to LREM. For many, one pass looks through the list if it is short and
-- its frames are small; that costs as much as some ten LREMs.
local MANY = 16
local PAGE = 128
local PASS_LENGTH = 24576
local PASS_BYTES = 1572864

local function can_pass(length, mean_size)
  return length <= PASS_LENGTH and length * mean_size <= PASS_BYTES
end

-- How many foreign frames a call may take out: at half a scan each, as many as fit into 5 ms and two scans.
local function most_foreign(length, mean_size)
  if can_pass(length, mean_size) then return math.huge end
  return 4 + math.floor(600000 / length)
end

local function locate_foreign(delay_queue, plan, length)
  local sought, left, byte_count = {}, #plan.rest, 0
  for _, frame in ipairs(plan.rest) do
    sought[frame] = true
    byte_count = byte_count + #frame
  end
  if left < MANY or not can_pass(length, byte_count / left) then return end
  -- The frames sought may be small and others huge: what is not found in time is left to LREM, which copies nothing.
  local from, size, seen_bytes = 0, 0, 0
  while left > 0 and from < length and seen_bytes < 2 * PASS_BYTES do
    size = next_size(size, from, seen_bytes, 2 * PASS_BYTES)
    if size == WIDEST then size = PAGE end
    for i, frame in ipairs(redis.call('LRANGE', delay_queue, from, from + size - 1)) do
      seen_bytes = seen_bytes + #frame
      if sought[frame] then
        sought[frame] = nil
        left = left - 1
        plan.indexes[#plan.indexes + 1] = from + i - 1
      end
    end
    from = from + size
  end
  local rest = {}
  for _, frame in ipairs(plan.rest) do
    if sought[frame] then rest[#rest + 1] = frame end
  end
  plan.rest = rest
  table.sort(plan.indexes)
end

-- Finds the index of every frame that is in the list; may leave foreign ones to LREM. known: indexes by frame, if the
-- caller has any.
local function locate_listed(delay_queue, frames, counters, known)
  local plan = { indexes = {}, rest = {} }
  local length = redis.call('LLEN', delay_queue)
  if length == 0 then return plan end
  if counters then read_numbers(counters) end
  local wanted, byte_count = {}, 0
  for _, frame in ipairs(frames) do
    local index = known and known[frame]
    local number = not index and own_number(frame)
    if index then
      plan.indexes[#plan.indexes + 1] = index
    elseif number then
      wanted[#wanted + 1] = { number, frame }
      byte_count = byte_count + #frame
    else
      number = unlisted_number(frame)
      if not is_ours(number) then plan.rest[#plan.rest + 1] = frame end
    end
  end
  if #wanted == 0 then
    locate_foreign(delay_queue, plan, length)
    return plan
  end
  if #wanted == 1 then
    -- One scan from either end: begin at the nearer end, if the list is long enough to make that worth a look.
    if length > 64 then
      local first = own_number(redis.call('LINDEX', delay_queue, 0)) or 0
      local last = own_number(redis.call('LINDEX', delay_queue, -1)) or wanted[1][1]
      plan.backwards = wanted[1][1] - first > last - wanted[1][1]
    end
    plan.rest[#plan.rest + 1] = wanted[1][2]
    return plan
  end
  table.sort(wanted, function(a, b) return a[1] < b[1] end)
  local half = math.max(1, math.min(WINDOW, math.floor(WINDOW_BYTES * #wanted / byte_count)))
  local most_bytes = SEARCH_BYTES + 8 * byte_count
  local window = open_window(delay_queue, 0, math.min(length - 1, 2 * half))
  local tail, tail_end = open_window(delay_queue, math.max(0, length - 2 * half), length - 1)
  local low_index, low_number = -1, window and window.first_number - 1 or 0
  local is_whole_tail = tail and tail_end == length - 1
  local top_number = (is_whole_tail and tail.last_number or wanted[#wanted][1]) + 1
  -- How far the last frames lay from where they were guessed. No more than that is read around a guess, plus the frames
  -- sought next where they lie close together.
  local reach = 1
  for i, want in ipairs(wanted) do
    local number, frame = want[1], want[2]
    local low_i, low_n, high_i, high_n, width = low_index, low_number, length, top_number, math.ceil(reach)
    local index, absent, guessed
    for step = 0, SEARCHES do
      if window and number >= window.first_number and number <= window.last_number then
        local at = find_in_window(window, number, frame)
        if at and window.part[at] == frame then
          index = window.from + at - 1
        elseif not at then
          absent = true
        end
        break
      end
      if step > 0 and not window then
        width = width * 2
      elseif window and window.last_number < number and window.from + window.last - 1 > low_i then
        low_i, low_n = window.from + window.last - 1, window.last_number
      elseif window and window.first_number > number and window.from + window.first - 1 < high_i then
        high_i, high_n = window.from + window.first - 1, window.first_number
      end
      if high_i - low_i <= 1 or number <= low_n or number >= high_n then
        absent = true
        break
      end
      -- What is not found in time is left to LREM, which copies nothing.
      if searched_bytes >= most_bytes then break end
      local guess
      if step % 4 == 3 then
        guess = math.floor((low_i + high_i) / 2)
      else
        guess = low_i + math.floor((number - low_n) * (high_i - low_i) / (high_n - low_n))
      end
      guessed = guessed or guess
      local from = math.max(low_i + 1, math.min(guess - width, high_i - 1))
      local to = guess + width
      if step == 0 then
        local more = 1
        while more < READ_ON and wanted[i + more] and wanted[i + more][1] - number <= 2 * more do more = more + 1 end
        to = to + (wanted[i + more - 1][1] - number)
      end
      to = math.min(high_i - 1, math.max(to, from))
      local last_read
      window, last_read = open_window(delay_queue, from, to)
      if not window and from == low_i + 1 and last_read >= high_i - 1 then
        absent = true
        break
      end
    end
    if index then
      plan.indexes[#plan.indexes + 1] = index
      low_index, low_number = index, number
      if guessed then reach = math.min(half, math.max(1, 0.8 * reach, 2 * math.abs(index - guessed))) end
    elseif not absent then
      plan.rest[#plan.rest + 1] = frame
    end
  end
  locate_foreign(delay_queue, plan, length)
  return plan
end

local function unlist(delay_queue, counters, plan)
  local indexes, first, last = plan.indexes, 1, #plan.indexes
  if last > 0 then
    local length = redis.call('LLEN', delay_queue)
    -- What was offered first, or last, is often due first. A run at either end is cut off without a scan.
    while first <= last and indexes[first] == first - 1 do first = first + 1 end
    local head, tail = first - 1, 0
    while first <= last and indexes[last] == length - 1 - tail do last, tail = last - 1, tail + 1 end
    if first <= last then
      -- Tombstones before the widest gap are taken out from the head, the others from the tail: that scans least.
      local from_head, least = 0, length - indexes[first]
      for i = first, last do
        local scanned = indexes[i] + 1 + (i < last and length - indexes[i + 1] or 0)
        if scanned < least then from_head, least = i - first + 1, scanned end
      end
      redis.call('HSET', counters, 'sweeping', 1)
      for i = first, last do
        -- Servers before 7.0 seek from the end that the index's sign names.
        local index = indexes[i]
        redis.call('LSET', delay_queue, 2 * index < length and index or index - length, TOMBSTONE)
      end
      if head + tail > 0 then redis.call('LTRIM', delay_queue, head, -1 - tail) end
      local from_tail = last - first + 1 - from_head
      if from_head > 0 then redis.call('LREM', delay_queue, from_head, TOMBSTONE) end
      if from_tail > 0 then redis.call('LREM', delay_queue, -from_tail, TOMBSTONE) end
      redis.call('HDEL', counters, 'sweeping')
    else
      redis.call('LTRIM', delay_queue, head, -1 - tail)
    end
  end
  for _, frame in ipairs(plan.rest) do redis.call('LREM', delay_queue, plan.backwards and -1 or 1, frame) end
end
