-- Change a limit of the queue, or one that tasks have, while workers run; or clear what was set.
--
-- Prelude  clock, window, frame, job
-- Keys     control, channel
-- Args     name: name of the limit; empty: the queue itself
--          change: what to set, as JSON, see _limit.lua; the rest stays as it is. Empty: clear all that was set
--          by: who sets it
--          id: 16 random characters: a repeat with the same has the same reply
-- Returns  1; 0 if nothing was there to clear. If the server refused to publish, also its error

local now_ms, name, change, id = math.floor(read_clock() / 1000), args.name, args.change, args.id
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
  stored.set, stored.by = set, args.by
  local is_json, text = pcall(cjson.encode, stored)
  -- Somebody may have written numbers that JSON does not have: then that counts for nothing.
  if not is_json then text = cjson.encode({ set = decode_table(change), by = args.by }) end
  redis.call('HSET', keys.control, field, text)
end
local refusal = publish(keys.channel, now_ms)
return refusal and { 1, refusal } or 1
