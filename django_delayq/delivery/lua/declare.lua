-- Say which limits the code of a worker process has; forget those that no code has had for long.
--
-- Prelude  clock, window, frame, job, pause
-- Keys     control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  1: the process begins, so its code is the latest; else it changes nothing that others have said since
-- ARGV[3]  how long a limit counts after a process said so (ms)
-- ARGV[4]  the format that the caller reads; if the queue's is later, nothing changes
-- ARGV[5]  and on, two each: name of the limit; what it says, as JSON, see _limit.lua
-- Returns  how many limits have changed

local now_ms, is_new, kept_ms = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2] == '1', tonumber(ARGV[3])

local function is_same(one, other)
  for _, key in ipairs({ 'concurrency', 'rate' }) do
    if one[key] ~= other[key] then return false end
  end
  return true
end

local own, values, over, changed = {}, {}, {}, 0
local function keep(name, limit)
  -- Somebody may have written numbers that JSON does not have: then that counts for nothing.
  local is_json, text = pcall(cjson.encode, limit)
  values[#values + 1] = 'limit:' .. name
  values[#values + 1] = is_json and text or cjson.encode({ code = own[name], at = decimal(now_ms) })
end

local function is_old(limit)
  -- A clock that was set back must not make a limit immortal.
  return math.abs(now_ms - (tonumber(limit.at) or 0)) > kept_ms
end

for i = 5, #ARGV - 1, 2 do own[ARGV[i]] = decode_table(ARGV[i + 1]) end
local there, fields = {}, redis.call('HGETALL', keys.control)
for i = 1, #fields, 2 do
  if fields[i] == 'format' and (tonumber(fields[i + 1]) or 0) > tonumber(ARGV[4]) then return 0 end
  if fields[i]:sub(1, 6) == 'limit:' then there[fields[i]:sub(7)] = decode_table(fields[i + 1]) end
end
for name, code in pairs(own) do
  local limit = there[name] or {}
  local is_mine = type(limit.code) == 'table' and is_same(limit.code, code)
  if is_mine or is_new or not limit.code or is_old(limit) then
    if not is_mine then changed = changed + 1 end
    limit.code, limit.at = code, decimal(now_ms)
    keep(name, limit)
  end
end
for name, limit in pairs(there) do
  if not own[name] and limit.code and is_old(limit) then
    limit.code, limit.at, changed = nil, nil, changed + 1
    if limit.set then keep(name, limit) else over[#over + 1] = 'limit:' .. name end
  end
end
if #values + #over == 0 then return 0 end
-- First a command that a full server does not refuse.
redis.call('HDEL', keys.control, '', unpack(over))
if #values > 0 then redis.call('HSET', keys.control, unpack(values)) end
return changed
