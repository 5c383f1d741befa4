-- Replace payloads or errors of jobs, each in its place: same token, same 8 bytes and score of its frame, same index. Safe to repeat:
-- a payload that has changed since it was read, or that only a long search would find, is left alone.
--
-- Prelude  clock, count, window, frame, list, job
-- Keys     timeout_set, delay_queue, destination, locators, payloads, errors, counters, forwards
-- Args     where: where they are: 'frames', 'destination', 'forwards', 'payloads' or 'errors'
--          items... (hint, old, new): for 'payloads' and 'errors' the field of the hash, else the index when it was read, in the delay queue or,
--            counted from the tail, in the destination queue, empty if it was in neither; the frame, payload or forward as it
--            was read; the payload or forward to write
-- Returns  how many were written

local where = args.where
local hash = where == 'errors' and keys.errors or keys.payloads

check_hashes(keys.locators, keys.payloads, keys.errors, keys.counters)
check_sets(keys.forwards)
local listed_count = redis.call('LLEN', keys.delay_queue)
redis.call('LLEN', keys.destination)

-- The indexes of each element in a stretch of a list; table.remove() takes the last.
local function indexes_in(list, from, to)
  local indexes = {}
  -- Not -LLEN: of an empty list that is -0, which servers before Valkey 8 do not take for a number.
  if from < 0 then from = math.max(from, 0 - redis.call('LLEN', list)) end
  for i, element in ipairs(redis.call('LRANGE', list, from, to)) do
    indexes[element] = indexes[element] or {}
    table.insert(indexes[element], from + i - 1)
  end
  return indexes
end

-- The stretch from the first to the last index that the caller has read. moved: and as many elements before it, as
-- others may have been added since.
local function stretch(moved)
  local first, last = math.huge, -math.huge
  for i = args.items, #ARGV, #args.items do
    local index = tonumber(args.items[i].hint)
    if index then first, last = math.min(first, index), math.max(last, index) end
  end
  if first > last then return {} end
  return indexes_in(where == 'frames' and keys.delay_queue or keys.destination, first - (moved and last - first + 1 or 0), last)
end

-- Returns index by frame, for frames in the delay queue. `left` gets those whose place stays unknown.
local left = {}
local function find_listed(frames)
  local indexes, sought, byte_count = {}, {}, 0
  if listed_count == 0 then return indexes end
  local read = stretch(false)
  for _, frame in ipairs(frames) do
    if read[frame] then
      indexes[frame] = read[frame][1]
    elseif not unlisted_number(frame) then
      sought[#sought + 1] = frame
      byte_count = byte_count + #frame
    end
  end
  if #sought == 0 then return indexes end
  -- Frames before these were taken out meanwhile, so look for them.
  local plan = locate_listed(keys.delay_queue, sought, keys.counters)
  for _, index in ipairs(plan.indexes) do indexes[redis.call('LINDEX', keys.delay_queue, index)] = index end
  -- A frame that no search finds costs a scan.
  local scans = math.min(#plan.rest, most_foreign(listed_count, byte_count / #sought))
  for i, frame in ipairs(plan.rest) do
    if i > scans then
      left[frame] = true
    else
      indexes[frame] = redis.call('LPOS', keys.delay_queue, frame) or nil
    end
  end
  return indexes
end

local found, places = {}, {}
local function relocate(token, old, mac)
  local place = place_of(token)
  if not is_located(place, token, old) then return end
  place.mac = mac
  places[#places + 1] = token
  places[#places + 1] = write_locator(place)
end

local indexes
if where == 'frames' then
  local frames = {}
  for i = args.items, #ARGV, #args.items do
    if redis.call('ZSCORE', keys.timeout_set, args.items[i].old) then frames[#frames + 1] = args.items[i].old end
  end
  indexes = find_listed(frames)
elseif where == 'destination' then
  -- Elements that were added since have moved these on.
  indexes = stretch(true)
end

for i = args.items, #ARGV, #args.items do
  local hint, old, payload = args.items[i].hint, args.items[i].old, args.items[i].new
  local token, mac = token_of(payload)
  if where == 'frames' then
    local score, was, id, format = redis.call('ZSCORE', keys.timeout_set, old), unpack_frame(old)
    if score and was and not left[old] then
      local head = format == 2 and old:sub(1, 9) or id
      found[#found + 1] = {
        old = old, new = head .. struct.pack('<L', #payload) .. payload, score = score, index = indexes[old],
      }
      if token then relocate(token, was, mac) end
    end
  elseif where == 'destination' then
    local index = indexes[old] and table.remove(indexes[old])
    if index then
      found[#found + 1] = { index = index, new = payload }
      if token then relocate(token, old, mac) end
    end
  elseif where == 'forwards' then
    if redis.call('ZSCORE', keys.forwards, old) then found[#found + 1] = { old = old, new = payload } end
  elseif redis.call('HGET', hash, hint) == old then
    found[#found + 1] = { token = hint, new = payload }
  end
end

for _, item in ipairs(found) do
  if where == 'frames' then
    redis.call('ZREM', keys.timeout_set, item.old)
    redis.call('ZADD', keys.timeout_set, item.score, item.new)
    if item.index then redis.call('LSET', keys.delay_queue, item.index, item.new) end
  elseif where == 'destination' then
    redis.call('LSET', keys.destination, item.index, item.new)
  elseif where == 'forwards' then
    redis.call('ZREM', keys.forwards, item.old)
    redis.call('ZADD', keys.forwards, 0, item.new)
  else
    redis.call('HSET', hash, item.token, item.new)
  end
end
if #places > 0 then redis.call('HSET', keys.locators, unpack(places)) end
return #found
