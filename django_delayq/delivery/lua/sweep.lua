-- Forget what belongs to no job or process any more, in a part of one of our hashes: Java took the frame, somebody
-- deleted a key, or a process vanished.
--
-- Prelude  clock, count, window, frame, list, job, find
-- Keys     timeout_set, destination, locators, unique, headers, payloads, errors, swept, leases, retries, returned,
--          held, dead, quarantine
-- Where    swept: the hash that is swept
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  which hash: 'locators', 'headers', 'errors', 'unique', 'notes' or 'claims'
-- ARGV[3]  cursor of the last call, 0 at first
-- ARGV[4]  fields to look at, approximately
-- Returns  the next cursor, 0 at the end; fields forgotten. Locators are not forgotten while the destination queue is
--          too long, or too large, to be looked through

local now_ms, which = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]
-- A claim is repeated within seconds, so its request is kept for longer than that.
local CLAIM_KEPT_MS = 60000

-- A job that has a header is in one of these.
local places = { keys.leases, keys.retries, keys.returned, keys.held, keys.dead, keys.quarantine }
local function is_anywhere(token)
  for _, place in ipairs(places) do
    if redis.call('ZSCORE', place, token) then return true end
  end
  return false
end

check_hashes(keys.unique, keys.headers, keys.payloads, keys.errors)
local lying, is_all
if which == 'locators' then
  if redis.call('LLEN', keys.destination) <= SEARCHED then lying, is_all = tokens_lying(keys.destination) end
  if not is_all then return { ARGV[3], 0 } end
end

local function is_over(field, value)
  if which == 'locators' then
    local start, format, id, _, mac = read_locator(value)
    return not (mac and lying[field .. mac]) and not (start and find_frame(keys.timeout_set, start, format, id, field, mac))
  elseif which == 'headers' or which == 'errors' then
    return not is_anywhere(field)
  elseif which == 'unique' then
    return redis.call('HEXISTS', keys.headers, value) == 0 and redis.call('HEXISTS', keys.locators, value) == 0
  elseif which == 'notes' then
    return redis.call('HEXISTS', keys.locators, field) == 0
  end
  local lease_end = #value >= 16 and struct.unpack('<d', value, 9)
  return not lease_end or not (lease_end > now_ms - CLAIM_KEPT_MS)
end

local part = redis.call('HSCAN', keys.swept, ARGV[3], 'COUNT', ARGV[4])
local over = {}
for i = 1, #part[2], 2 do
  if is_over(part[2][i], part[2][i + 1]) then over[#over + 1] = { part[2][i], part[2][i + 1] } end
end
for _, item in ipairs(over) do
  if which == 'locators' then
    forget(item[1], item[2])
  elseif which == 'headers' or which == 'errors' then
    local _, _, _, _, _, key = read_header(redis.call('HGET', keys.headers, item[1]))
    release_unique(keys.unique, key, item[1])
    for _, hash in ipairs({ keys.headers, keys.payloads, keys.errors }) do redis.call('HDEL', hash, item[1]) end
  else
    redis.call('HDEL', keys.swept, item[1])
  end
end
return { part[1], #over }
