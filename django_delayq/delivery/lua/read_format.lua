-- Read which format a queue is in, and which is written to it: the same, or an earlier one that a command has chosen.
--
-- Keys     control
-- Returns  the format that its workers have to read; the format that is written

local fields = redis.call('HMGET', keys.control, 'format', 'written')
local format = tonumber(fields[1] or 1) or 1
return { format, math.min(format, tonumber(fields[2] or format) or format) }
