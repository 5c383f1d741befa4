-- Change a limit of the queue, or one that tasks have, while workers run; or clear what was set.
--
-- Prelude  clock, window, frame, job, pause
-- Keys     control, channel
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  name of the limit; empty: the queue itself
-- ARGV[3]  what to set, as JSON, see _limit.lua; the rest stays as it is. Empty: clear all that was set
-- ARGV[4]  who sets it
-- ARGV[5]  id, 16 random characters: a repeat with the same has the same reply
-- Returns  1; 0 if nothing was there to clear. If the server refused to publish, also its error

local now_ms, name, change, id = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2], ARGV[3], ARGV[5]
local field = name == '' and 'queue_limit' or 'limit:' .. name

local values = redis.call('HMGET', keys.control, field, 'cleared')
if change == '' and values[2] == id then return 1 end
local stored = decode_table(values[1] or nil)
if change == '' and not stored.set then return 0 end
-- First a command that a full server does not refuse.
redis.call('HDEL', keys.control, '')
if change == '' then
  redis.call('HDEL', keys.control, field)
  stored.set, stored.by = nil, nil
  local is_json, text = pcall(cjson.encode, stored)
  if stored.code and is_json then redis.call('HSET', keys.control, field, text) end
  redis.call('HSET', keys.control, 'cleared', id)
else
  local set = type(stored.set) == 'table' and stored.set or {}
  for key, value in pairs(decode_table(change)) do set[key] = value end
  stored.set, stored.by = set, ARGV[4]
  local is_json, text = pcall(cjson.encode, stored)
  -- Somebody may have written numbers that JSON does not have: then that counts for nothing.
  if not is_json then text = cjson.encode({ set = decode_table(change), by = ARGV[4] }) end
  redis.call('HSET', keys.control, field, text)
end
local refusal = publish(keys.channel, now_ms)
return refusal and { 1, refusal } or 1
