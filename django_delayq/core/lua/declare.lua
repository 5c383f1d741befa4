-- Say when the code of a worker process was loaded and which limits it has; forget processes that say nothing any more,
-- and limits that no code has had for long.
--
-- Prelude  clock, window, frame, job
-- Keys     control
-- Args     owner: 8 bytes that name the process
--          loaded_ms: when the code was loaded, epoch ms. A limit of later code stays while a process with that code lives
--          kept_ms: how long a limit counts after a process said so, ms
--          silent_ms: after how long without a word a process is gone, ms
--          read_format: the format that the caller reads; if the queue's is later, nothing changes
--          has_schedules: 1: the code has schedules of this queue
--          limits... (name, text): name of the limit; what it says, as JSON, see _limit.lua
-- Reply    changed: how many limits have changed
--          is_latest: 1 if no living process has later code with schedules of this queue. A process hears that only after half of the
--            time in silent_ms: when all have been silent, the others speak first

local now_ms, owner, loaded_ms = math.floor(read_clock() / 1000), args.owner, tonumber(args.loaded_ms)
local kept_ms, silent_ms, has_schedules = tonumber(args.kept_ms), tonumber(args.silent_ms), args.has_schedules == '1'

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
  values[#values + 1] = is_json and text or cjson.encode({ code = own[name], at = decimal(now_ms), loaded = args.loaded_ms })
end

local function is_older(said, ms)
  -- A clock that was set back must make nothing immortal.
  return math.abs(now_ms - (tonumber(said.at) or 0)) > ms
end

for i = args.limits, #ARGV, #args.limits do own[args.limits[i].name] = decode_table(args.limits[i].text) end
local there, alive, since_ms, has_later = {}, { [loaded_ms] = true }, now_ms, false
local fields = redis.call('HGETALL', keys.control)
for i = 1, #fields, 2 do
  local field, kind = fields[i], fields[i]:match('^%a+:?')
  if field == 'format' and (tonumber(fields[i + 1]) or 0) > tonumber(args.read_format) then return { 0, 0 } end
  if kind == 'limit:' then there[field:sub(7)] = decode_table(fields[i + 1]) end
  if kind == 'code:' then
    local said = decode_table(fields[i + 1])
    local its_ms, is_gone = tonumber(said.loaded) or 0, is_older(said, silent_ms)
    if field:sub(6) == owner then
      if not is_gone then since_ms = math.min(now_ms, tonumber(said.since) or now_ms) end
    elseif is_gone or its_ms > now_ms + SKEW_MS then
      -- Code that was loaded while the server's clock was ahead is not the latest for ever.
      over[#over + 1] = field
    else
      alive[its_ms], has_later = true, has_later or said.has_schedules == '1' and its_ms > loaded_ms
    end
  end
end
for name, code in pairs(own) do
  local limit = there[name] or {}
  local its_ms = tonumber(limit.loaded) or 0
  if not limit.code or loaded_ms >= its_ms or not alive[its_ms] then
    if not (type(limit.code) == 'table' and is_same(limit.code, code)) then changed = changed + 1 end
    limit.code, limit.at, limit.loaded = code, decimal(now_ms), args.loaded_ms
    keep(name, limit)
  end
end
for name, limit in pairs(there) do
  if not own[name] and limit.code and is_older(limit, kept_ms) then
    limit.code, limit.at, limit.loaded, changed = nil, nil, nil, changed + 1
    if limit.set then keep(name, limit) else over[#over + 1] = 'limit:' .. name end
  end
end
if has_schedules or #ARGV >= args.limits then
  values[#values + 1] = 'code:' .. owner
  values[#values + 1] =
    cjson.encode({ at = decimal(now_ms), since = decimal(since_ms), loaded = args.loaded_ms, has_schedules = args.has_schedules })
end
if #values + #over == 0 then return { 0, 0 } end
-- First a command that a full server does not refuse.
redis.call('HDEL', keys.control, '', unpack(over))
if #values > 0 then redis.call('HSET', keys.control, unpack(values)) end
local is_latest = has_schedules and not has_later and now_ms - since_ms >= silent_ms / 2
return { changed, is_latest and 1 or 0 }
