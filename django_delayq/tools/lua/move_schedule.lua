-- Move what is stored of one periodic schedule to another server, or what somebody has changed of one in code. Safe to
-- repeat.
--
-- Prelude  clock, window, frame, job, schedules
-- Keys     schedules, periods, channel
-- Args     step: what to do: 'take' sets a stored schedule aside, and it comes to no occurrence here; 'read' only
--            reads it; 'end' deletes what was set
--            aside; 'release' takes it back; 'put' writes these here
--          name: name of the schedule
--          stored: for 'put': its definition, empty for a schedule in code
--          change: for 'put': its change, empty if there is none
--          state: for 'put': its state, likewise
--          occurrence: for 'put': its next occurrence, likewise
--          version: for 'put': the version of the definitions that the caller has read
--          register: for 'put': the register of the queue; '=': it stays
-- Returns  for 'take' and 'read', these four, or nothing if no such schedule is stored; for 'put' the version of the
--          definitions as it is now, 0 if there is one already, -1 if somebody else has changed one: then nothing was
--          changed; else 1, or 0 if nothing was to be done

local now_us, step, name = read_clock(), args.step, args.name
local PARTS = { 'stored ', 'change ', 'state ', 'moment ' }

local function fields_of(before)
  local fields = {}
  for i, part in ipairs(PARTS) do fields[i] = before .. part .. name end
  return fields
end

local aside, places = fields_of('moving '), fields_of('')
local values = redis.call('HMGET', keys.schedules, unpack(aside))
redis.call('ZCARD', keys.periods)

local function tell()
  redis.call('HSET', keys.schedules, 'version', decimal(math.max(read_version() + 1, math.floor(now_us))))
  publish(keys.channel, 0)
end

-- Values in the order of the parts, false for one that there is not. Whoever stored another one since keeps that.
local function write(found)
  for i = 1, 3 do
    if found[i] and found[i] ~= '' then redis.call('HSETNX', keys.schedules, places[i], found[i]) end
  end
  local occurrence = tonumber(found[4] or '')
  if occurrence and is_score(occurrence) then redis.call('ZADD', keys.periods, 'NX', decimal(occurrence), name) end
  tell()
end

if step == 'take' or step == 'read' then
  if not values[1] then
    local found = redis.call('HMGET', keys.schedules, unpack(places))
    if not found[1] then return {} end
    found[4] = redis.call('ZSCORE', keys.periods, name)
    values = found
    if step == 'take' then
      -- A removal is first, which a full server does not refuse.
      redis.call('ZREM', keys.periods, name)
      for i = 1, 4 do
        if found[i] then redis.call('HSET', keys.schedules, aside[i], found[i]) end
      end
      redis.call('HDEL', keys.schedules, unpack(places))
      tell()
    end
  end
  local reply = {}
  for i = 1, 4 do reply[i] = values[i] or '' end
  return reply
elseif step == 'put' then
  local known = redis.call('HGET', keys.schedules, args.stored == '' and places[2] or places[1])
  if known then return 0 end
  if read_version() ~= (tonumber(args.version) or 0) then return -1 end
  if args.register ~= '=' then redis.call('HSET', keys.schedules, 'register ' .. args.register:sub(1, 4), args.register) end
  -- Nothing of an earlier schedule of this name is for this one.
  if args.stored ~= '' then redis.call('HDEL', keys.schedules, places[2], places[3]) end
  write({ args.stored, args.change, args.state, args.occurrence })
  return read_version()
end
if not values[1] then return 0 end
redis.call('HDEL', keys.schedules, unpack(aside))
if step == 'release' then write(values) else tell() end
return 1
