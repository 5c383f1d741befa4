-- Replace what an hour has by the same in fewer bytes, and what there is of its day.
--
-- Keys     hours
-- Args     hour: its number
--          whole: what it has of the queue in whole, shortened
--          tasks: what it has of tasks, compressed
--          day_field: field of its day
--          day_head: what that began with when it was read; if it does not any more, the day stays as it is
--          day: the day with this hour
-- Returns  1; 0 if the hour is not there, or was packed before

local field = args.hour .. ':tasks'
local found = redis.call('HGET', keys.hours, field)
if not found or found:byte(1) ~= 0 then return 0 end
local day = redis.call('HGET', keys.hours, args.day_field) or ''
redis.call('HSET', keys.hours, args.hour, args.whole, field, args.tasks)
if day:sub(1, 8) == args.day_head then redis.call('HSET', keys.hours, args.day_field, args.day) end
return 1
