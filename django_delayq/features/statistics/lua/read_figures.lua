-- Read the figures of some minutes, or of some hours: the one that is open, and the slots of those that are closed.
--
-- Prelude  clock
-- Keys     minute, minutes, hour, hours
-- Args     unit: minute or hour
--          slots: slots of the unit, which take turns
--          first: how many of the last to leave out, the present one included; 0: none
--          count: how many to read
--          of_tasks: 1: those of each task; 0: those of the queue in whole
-- Reply    now: the present minute or hour
--          moment: the one that is open, 0: none
--          open...: its figures as field, value, …
--          closed...: one each, the last first: what its slot holds, see features/statistics/calls.py

local is_minute, first, count, is_tasks = args.unit == 'minute', tonumber(args.first), tonumber(args.count), args.of_tasks == '1'
local open, closed = is_minute and keys.minute or keys.hour, is_minute and keys.minutes or keys.hours
local slots = tonumber(args.slots)
local now = math.floor(read_clock() / (is_minute and 60000000 or 3600000000))
local moment = tonumber(redis.call('HGET', open, 'moment') or nil) or 0
local fields = {}
for n = first, first + count - 1 do
  fields[#fields + 1] = decimal((now - n) % slots) .. (is_tasks and ':tasks' or '')
end
local found, there = redis.call('HMGET', closed, unpack(fields)), {}
if moment > now - first - count and moment <= now - first then
  there = is_tasks and redis.call('HGETALL', open) or { 'task:', redis.call('HGET', open, 'task:') or '' }
end
for n = 1, count do found[n] = found[n] or '' end
return { now, moment, there, found }
