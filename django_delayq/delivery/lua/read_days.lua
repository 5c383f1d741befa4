-- Read the hour that is open, and what there is of days.
--
-- Prelude  clock
-- Keys     hour, hours
-- Args     days_kept: days that are kept
-- Reply    now: the present hour
--          moment: the one that is open, 0: none
--          open...: its figures as field, value, …
--          days...: what there is of each day, see delivery/statistics.py

local now = math.floor(read_clock() / 3600000000)
local moment = tonumber(redis.call('HGET', keys.hour, 'moment') or nil) or 0
-- After the clock was set back a little, see add_figures.lua.
if moment == now + 1 then now = moment end
local fields = {}
for n = 0, tonumber(args.days_kept) - 1 do fields[#fields + 1] = 'day:' .. n end
local days = redis.call('HMGET', keys.hours, unpack(fields))
for n = 1, #fields do days[n] = days[n] or '' end
return { now, moment, redis.call('HGETALL', keys.hour), days }
