-- Forget what belongs to no job and to no process any more, in a part of one of our hashes: Java took the frame,
-- somebody deleted a key, a process vanished.
--
-- Prelude  clock, count, window, frame, list, job, find
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  destination queue
-- KEYS[3]  hash  locators by token
-- KEYS[4]  hash  unique keys: holder's token
-- KEYS[5]  hash  headers by token
-- KEYS[6]  hash  notes by token: what to do with a job found in the destination queue
-- KEYS[7]  hash  claims: the last request of each owner
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  which hash: 'locators', 'unique', 'notes' or 'claims'
-- ARGV[3]  cursor of the last call, 0 at first
-- ARGV[4]  fields to look at, about
-- Returns  the next cursor, 0 at the end; fields forgotten; of the locators none where the destination queue is too
--          long, or has too many bytes, to be looked through

local keys = {
  timeout_set = KEYS[1], destination = KEYS[2], locators = KEYS[3], unique = KEYS[4], headers = KEYS[5],
  notes = KEYS[6], claims = KEYS[7],
}
local now_ms, which = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]
-- A request is repeated within seconds of its claim.
local CLAIM_KEPT_MS = 60000

-- The tokens of the jobs in the destination queue; nil where it is too long to be looked through.
local function tokens_lying()
  local lying, from, size, byte_count, length = {}, 0, 0, 0, redis.call('LLEN', keys.destination)
  if length > SEARCHED then return nil end
  while from < length do
    size = next_size(size, from, byte_count, SEARCHED_BYTES)
    for _, payload in ipairs(redis.call('LRANGE', keys.destination, from, from + size - 1)) do
      local token = token_of(payload)
      if token then lying[token] = true end
      byte_count = byte_count + #payload
    end
    if byte_count > SEARCHED_BYTES then return nil end
    from = from + size
  end
  return lying
end

check_hashes(keys.unique)
local lying = which == 'locators' and tokens_lying()
if which == 'locators' and not lying then return { ARGV[3], 0 } end

local function is_over(field, value)
  if which == 'locators' then
    local due, format, id = read_locator(value)
    return not lying[field] and not (due and find_frame(keys.timeout_set, due, format, id))
  elseif which == 'unique' then
    return redis.call('HEXISTS', keys.headers, value) == 0 and redis.call('HEXISTS', keys.locators, value) == 0
  elseif which == 'notes' then
    return redis.call('HEXISTS', keys.locators, field) == 0
  end
  local lease_end = #value >= 16 and struct.unpack('<d', value, 9)
  return not lease_end or not (lease_end > now_ms - CLAIM_KEPT_MS)
end

local swept = keys[which]
local part = redis.call('HSCAN', swept, ARGV[3], 'COUNT', ARGV[4])
local over = {}
for i = 1, #part[2], 2 do
  if is_over(part[2][i], part[2][i + 1]) then over[#over + 1] = { part[2][i], part[2][i + 1] } end
end
for _, item in ipairs(over) do
  if which == 'locators' then
    forget(keys, item[1], item[2])
  else
    redis.call('HDEL', swept, item[1])
  end
end
return { part[1], #over }
