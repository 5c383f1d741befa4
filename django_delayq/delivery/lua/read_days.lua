-- Read the hour that is open, and what there is of days.
--
-- Prelude  clock
-- Keys     hour, hours
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  days that are kept
-- Returns  the present hour; the one that is open, 0: none; its figures as field, value, …; what there is of each day, see
--          delivery/statistics.py

local now = math.floor(read_clock(ARGV[1]) / 3600000000)
local moment = tonumber(redis.call('HGET', keys.hour, 'moment') or nil) or 0
-- After the clock was set back a little, see add_figures.lua.
if moment == now + 1 then now = moment end
local fields = {}
for n = 0, tonumber(ARGV[2]) - 1 do fields[#fields + 1] = 'day:' .. n end
local days = redis.call('HMGET', keys.hours, unpack(fields))
for n = 1, #fields do days[n] = days[n] or '' end
return { now, moment, redis.call('HGETALL', keys.hour), days }
