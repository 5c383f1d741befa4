-- Forget jobs whose frames Java has taken: locators that lead nowhere, and the unique keys they held.
--
-- Prelude  clock, count, window, frame, list, job, find
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  destination queue
-- KEYS[3]  hash  locators by token
-- KEYS[4]  hash  unique keys: holder's token
-- ARGV[1]  cursor of the last call, 0 at first
-- ARGV[2]  locators to look at, about
-- Returns  the next cursor, 0 at the end; locators forgotten, none where the destination queue is too long, or has
--          too many bytes, to be looked through

local keys = { timeout_set = KEYS[1], destination = KEYS[2], locators = KEYS[3], unique = KEYS[4] }
check_hashes(keys.unique)
local part = redis.call('HSCAN', keys.locators, ARGV[1], 'COUNT', ARGV[2])
local lying, lost = {}, {}
local from, size, byte_count, length = 0, 0, 0, redis.call('LLEN', keys.destination)
if length > SEARCHED then return { ARGV[1], 0 } end
while from < length do
  size = next_size(size, from, byte_count, SEARCHED_BYTES)
  for _, payload in ipairs(redis.call('LRANGE', keys.destination, from, from + size - 1)) do
    local token = token_of(payload)
    if token then lying[token] = true end
    byte_count = byte_count + #payload
  end
  if byte_count > SEARCHED_BYTES then return { ARGV[1], 0 } end
  from = from + size
end
for i = 1, #part[2], 2 do
  local token, locator = part[2][i], part[2][i + 1]
  local due, format, id = read_locator(locator)
  local is_there = lying[token] or (due and find_frame(keys.timeout_set, due, format, id))
  if not is_there then lost[#lost + 1] = { token, locator } end
end
for _, item in ipairs(lost) do forget(keys, item[1], item[2]) end
return { part[1], #lost }
