-- Write payloads of jobs anew, each where it is: same token, same 8 bytes and score of its frame, same index. Safe to
-- repeat: what is not as it was read is left alone.
--
-- Prelude  count, window, frame, list, job
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  delay queue: frames in arrival order
-- KEYS[3]  list  destination queue
-- KEYS[4]  hash  locators by token
-- KEYS[5]  hash  payloads by token
-- KEYS[6]  hash  counters
-- ARGV[1]  where they are: 'frames', 'destination' or 'payloads'
-- ARGV[2]  and on, three each: its index in the delay queue or the destination queue when it was read, empty where it
--          was in neither, or its token; the frame or the payload as it was read; the payload to write
-- Returns  how many were written

local timeout_set, delay_queue, destination, locators, payloads = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local counters, where = KEYS[6], ARGV[1]

-- Where an element is now. Others may have taken out what lay before it.
local function index_of(list, hint, element)
  if hint ~= '' and redis.call('LINDEX', list, hint) == element then return tonumber(hint) end
  return redis.call('LPOS', list, element) or nil
end

check_hashes(locators, payloads, counters)
local has_list = redis.call('LLEN', delay_queue) > 0
redis.call('LLEN', destination)

local found, places = {}, {}
local function relocate(token, old, mac)
  local locator = redis.call('HGET', locators, token)
  if not locator or not is_located(locator, token, old) then return end
  local due, format, id, key = read_locator(locator)
  places[#places + 1] = token
  places[#places + 1] = struct.pack(LOCATOR, due, format, id, mac) .. key
end

for i = 2, #ARGV, 3 do
  local hint, old, payload = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local token, mac = token_of(payload)
  if where == 'frames' then
    local score, was, id, format = redis.call('ZSCORE', timeout_set, old), unpack_frame(old)
    if score and was then
      local head = format == 2 and old:sub(1, 9) or id
      local item = { old = old, new = head .. struct.pack('<L', #payload) .. payload, score = score }
      if has_list and not unlisted_number(old) then item.index = index_of(delay_queue, hint, old) end
      found[#found + 1] = item
      if token then relocate(token, was, mac) end
    end
  elseif where == 'destination' then
    local index = index_of(destination, hint, old)
    if index then
      found[#found + 1] = { index = index, new = payload }
      if token then relocate(token, old, mac) end
    end
  elseif redis.call('HGET', payloads, hint) == old then
    found[#found + 1] = { token = hint, new = payload }
  end
end

for _, item in ipairs(found) do
  if where == 'frames' then
    redis.call('ZREM', timeout_set, item.old)
    redis.call('ZADD', timeout_set, item.score, item.new)
    if item.index then redis.call('LSET', delay_queue, item.index, item.new) end
  elseif where == 'destination' then
    redis.call('LSET', destination, item.index, item.new)
  else
    redis.call('HSET', payloads, item.token, item.new)
  end
end
if #places > 0 then redis.call('HSET', locators, unpack(places)) end
return #found
