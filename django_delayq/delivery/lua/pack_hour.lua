-- Replace what an hour has by the same in fewer bytes.
--
-- Keys     hours
-- ARGV[1]  the hour
-- ARGV[2]  what it has of the queue in whole, shortened
-- ARGV[3]  what it has of tasks, compressed
-- Returns  1; 0 if the hour is not there, or was packed before

local field = ARGV[1] .. ':tasks'
local found = redis.call('HGET', keys.hours, field)
if not found or found:byte(1) ~= 0 then return 0 end
redis.call('HSET', keys.hours, ARGV[1], ARGV[2], field, ARGV[3])
return 1
