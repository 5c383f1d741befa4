-- Replace what an hour has of tasks by the same, compressed.
--
-- Keys     hours
-- ARGV[1]  the hour
-- ARGV[2]  the same, compressed
-- Returns  1; 0 if the hour is not there, or was packed before

local field = ARGV[1] .. ':tasks'
local found = redis.call('HGET', keys.hours, field)
if not found or found:byte(1) ~= 0 then return 0 end
redis.call('HSET', keys.hours, field, ARGV[2])
return 1
