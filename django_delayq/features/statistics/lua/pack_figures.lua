-- Replace what a slot has of tasks by the same in fewer bytes.
--
-- Keys     minutes, hours
-- Args     unit: minute or hour
--          field: its field
--          size: bytes of what it had; if it has more or fewer, or is of another moment, it stays as it is
--          tasks: the same, compressed
-- Returns  1; 0 if it stays

local key = args.unit == 'minute' and keys.minutes or keys.hours
local found = redis.call('HGET', key, args.field)
if not found or #found ~= tonumber(args.size) or found:sub(1, 4) ~= args.tasks:sub(1, 4) then return 0 end
redis.call('HSET', key, args.field, args.tasks)
return 1
