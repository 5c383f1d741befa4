-- Say when the code of a worker process was loaded and which limits it has; forget those that no code has had for long.
--
-- Prelude  clock, window, frame, job, pause
-- Keys     control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  when the code was loaded, epoch ms: it changes nothing that processes with later code say
-- ARGV[3]  how long a limit counts after a process said so, ms
-- ARGV[4]  after how long without a word the processes that have said so are gone, ms
-- ARGV[5]  the format that the caller reads; if the queue's is later, nothing changes
-- ARGV[6]  1: the code has schedules of this queue
-- ARGV[7]  and on, two each: name of the limit; what it says, as JSON, see _limit.lua
-- Returns  how many limits have changed; 1 if, of the code of living processes that has schedules, this was the latest
--          before this call and is now

local now_ms, loaded_ms = math.floor(read_clock(ARGV[1]) / 1000), tonumber(ARGV[2])
local kept_ms, silent_ms = tonumber(ARGV[3]), tonumber(ARGV[4])

local function is_same(one, other)
  for _, key in ipairs({ 'concurrency', 'rate' }) do
    if one[key] ~= other[key] then return false end
  end
  return true
end

local own, values, over, changed, is_latest = {}, {}, {}, 0, 0
local function keep(name, limit)
  -- Somebody may have written numbers that JSON does not have: then that counts for nothing.
  local is_json, text = pcall(cjson.encode, limit)
  values[#values + 1] = 'limit:' .. name
  values[#values + 1] = is_json and text or cjson.encode({ code = own[name], at = decimal(now_ms), loaded = ARGV[2] })
end

local function is_older(said, ms)
  -- A clock that was set back must not make a limit immortal.
  return math.abs(now_ms - (tonumber(said.at) or 0)) > ms
end

local function is_ours(said)
  local latest_ms = tonumber(said.loaded) or 0
  -- Code that was loaded while the server's clock was ahead is not the latest for ever.
  return is_older(said, silent_ms) or loaded_ms >= latest_ms or latest_ms > now_ms + SKEW_MS
end

for i = 7, #ARGV - 1, 2 do own[ARGV[i]] = decode_table(ARGV[i + 1]) end
local there, latest, fields = {}, {}, redis.call('HGETALL', keys.control)
for i = 1, #fields, 2 do
  if fields[i] == 'format' and (tonumber(fields[i + 1]) or 0) > tonumber(ARGV[5]) then return { 0, 0 } end
  if fields[i] == 'latest' and ARGV[6] == '1' then latest = decode_table(fields[i + 1]) end
  if fields[i]:sub(1, 6) == 'limit:' then there[fields[i]:sub(7)] = decode_table(fields[i + 1]) end
end
for name, code in pairs(own) do
  local limit = there[name] or {}
  if not limit.code or is_ours(limit) then
    if not (type(limit.code) == 'table' and is_same(limit.code, code)) then changed = changed + 1 end
    limit.code, limit.at, limit.loaded = code, decimal(now_ms), ARGV[2]
    keep(name, limit)
  end
end
for name, limit in pairs(there) do
  if not own[name] and limit.code and is_older(limit, kept_ms) then
    limit.code, limit.at, limit.loaded, changed = nil, nil, nil, changed + 1
    if limit.set then keep(name, limit) else over[#over + 1] = 'limit:' .. name end
  end
end
if ARGV[6] == '1' and is_ours(latest) then
  -- When others have fallen silent, a process with later code than this may speak next.
  if tonumber(latest.loaded) == loaded_ms then is_latest = 1 end
  values[#values + 1] = 'latest'
  values[#values + 1] = cjson.encode({ at = decimal(now_ms), loaded = ARGV[2] })
end
if #values + #over == 0 then return { 0, 0 } end
-- First a command that a full server does not refuse.
redis.call('HDEL', keys.control, '', unpack(over))
if #values > 0 then redis.call('HSET', keys.control, unpack(values)) end
return { changed, is_latest }
