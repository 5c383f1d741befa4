-- Prelude: taking frames out of the delay queue, Redisson's list of all that was offered.
--
-- Needs _frame. Redisson pays an LREM, a scan from the head, for each frame. Our frames are numbered in list
-- order, so an interpolation search finds their index; they are overwritten by a tombstone each, and one LREM
-- takes all the tombstones out. locate_listed() only reads, unlist() only writes: nothing between the first
-- LSET and the LREM can fail, and should the server stop there all the same, the flag tells the next script.

local TOMBSTONE = '\0'
local WINDOW = 12
local SEARCHES = 40

local function sweep_tombstones(delay_queue, counters)
  if redis.call('HEXISTS', counters, 'sweeping') == 1 then
    redis.call('LREM', delay_queue, 0, TOMBSTONE)
    redis.call('HDEL', counters, 'sweeping')
  end
end

-- Returns the number before the first of `count` that the next frames may carry: never used before, and above that of
-- `last`, the last element of the delay queue or false.
local function next_numbers(last, counters, count)
  local floor = last and listed_number(last) or 0
  local number = redis.call('HINCRBY', counters, 'number', count)
  if number - count < floor then number = redis.call('HINCRBY', counters, 'number', floor - number + count) end
  return number - count
end

-- Index of every frame of ours that is there; the foreign ones, which are left to LREM.
local function locate_listed(delay_queue, frames)
  local plan = { indexes = {}, frames = {}, rest = {} }
  local length = redis.call('LLEN', delay_queue)
  if length == 0 then return plan end
  local wanted, byte_count = {}, 0
  for _, frame in ipairs(frames) do
    local number = listed_number(frame)
    if number then
      wanted[#wanted + 1] = { number, frame }
      byte_count = byte_count + #frame
    elseif not is_unlisted(frame) then
      plan.rest[#plan.rest + 1] = frame
    end
  end
  if #wanted == 0 then return plan end
  if #wanted == 1 and length > 64 then
    -- One scan either way; start it at the nearer end.
    local first = listed_number(redis.call('LINDEX', delay_queue, 0)) or 0
    local last = listed_number(redis.call('LINDEX', delay_queue, -1)) or wanted[1][1]
    plan.backwards = wanted[1][1] - first > last - wanted[1][1]
    plan.rest[#plan.rest + 1] = wanted[1][2]
    return plan
  end
  table.sort(wanted, function(a, b) return a[1] < b[1] end)
  -- A window of huge payloads would be copied into Lua whole.
  local half = math.max(1, math.min(WINDOW, math.floor(65536 * #wanted / byte_count)))
  local seen = {}
  local function look(from, to)
    local part = redis.call('LRANGE', delay_queue, from, to)
    local first, last
    for offset, frame in ipairs(part) do
      local number = listed_number(frame)
      if number then
        local entry = { from + offset - 1, number, frame }
        seen[number] = entry
        first = first or entry
        last = entry
      end
    end
    return first, last
  end
  local low_index, low_number = -1, nil
  local head = look(0, math.min(length - 1, half * 2))
  local _, tail = look(math.max(0, length - half * 2), length - 1)
  if head then low_number = head[2] - 1 else low_number = 0 end
  local top_index, top_number = length, (tail and tail[2] or wanted[#wanted][1]) + 1
  for _, want in ipairs(wanted) do
    local number, frame = want[1], want[2]
    local low_i, low_n, high_i, high_n = low_index, low_number, top_index, top_number
    local found, absent, width = seen[number], false, half
    for step = 1, SEARCHES do
      if found or absent then break end
      if high_i - low_i <= 1 or number <= low_n or number >= high_n then
        absent = true
        break
      end
      local guess
      if step % 4 == 0 then
        guess = math.floor((low_i + high_i) / 2)
      else
        guess = low_i + math.floor((number - low_n) * (high_i - low_i) / (high_n - low_n))
      end
      local from = math.max(low_i + 1, math.min(guess - width, high_i - 1), 0)
      local to = math.min(high_i - 1, math.max(guess + width, from))
      local first, last = look(from, to)
      found = seen[number]
      if not found then
        if not first then
          width = width * 2
          if from <= low_i + 1 and to >= high_i - 1 then absent = true end
        elseif last[2] < number then
          low_i, low_n = to, last[2]
        elseif first[2] > number then
          high_i, high_n = from, first[2]
        else
          absent = true
        end
      end
    end
    if found and found[3] == frame then
      plan.indexes[#plan.indexes + 1] = found[1]
      plan.frames[#plan.frames + 1] = frame
      low_index, low_number = found[1], number
    elseif found or not absent then
      plan.rest[#plan.rest + 1] = frame
    end
  end
  return plan
end

local function unlist(delay_queue, counters, plan)
  local indexes, count = plan.indexes, #plan.indexes
  -- What was offered first is often due first: a run at the head is cut off, no scan at all.
  local run = 0
  while run < count and indexes[run + 1] == run do run = run + 1 end
  if count - run > 0 then
    redis.call('HSET', counters, 'sweeping', 1)
    for i = run + 1, count do redis.call('LSET', delay_queue, indexes[i], TOMBSTONE) end
    if run > 0 then redis.call('LTRIM', delay_queue, run, -1) end
    redis.call('LREM', delay_queue, count - run, TOMBSTONE)
    redis.call('HDEL', counters, 'sweeping')
  elseif run > 0 then
    redis.call('LTRIM', delay_queue, run, -1)
  end
  for _, frame in ipairs(plan.rest) do redis.call('LREM', delay_queue, plan.backwards and -1 or 1, frame) end
end
