-- Replace what an hour has by the same in fewer bytes, and what there is of its day.
--
-- Keys     hours
-- ARGV[1]  the hour
-- ARGV[2]  what it has of the queue in whole, shortened
-- ARGV[3]  what it has of tasks, compressed
-- ARGV[4]  field of its day
-- ARGV[5]  what that began with when it was read; if it does not any more, the day stays as it is
-- ARGV[6]  the day with this hour
-- Returns  1; 0 if the hour is not there, or was packed before

local field = ARGV[1] .. ':tasks'
local found = redis.call('HGET', keys.hours, field)
if not found or found:byte(1) ~= 0 then return 0 end
local day = redis.call('HGET', keys.hours, ARGV[4]) or ''
redis.call('HSET', keys.hours, ARGV[1], ARGV[2], field, ARGV[3])
if day:sub(1, 8) == ARGV[5] then redis.call('HSET', keys.hours, ARGV[4], ARGV[6]) end
return 1
