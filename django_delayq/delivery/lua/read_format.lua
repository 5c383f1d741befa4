-- Read which format a queue is in, which is written to it (the same, or an earlier one that a
-- command has chosen), and whether it has priorities.
--
-- Keys     control
-- Returns  the format that its workers have to read; the format that is written; 1 if a job that waits has a priority

local fields = redis.call('HMGET', keys.control, 'format', 'written', 'ranked')
local format = tonumber(fields[1] or 1) or 1
return { format, math.min(format, tonumber(fields[2] or format) or format), fields[3] and 1 or 0 }
