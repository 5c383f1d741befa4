-- Say in which format a queue is written: its own, or an earlier one that a command has chosen.
--
-- KEYS[1]  hash  control: format; written, where a command has chosen
-- Returns  the format

local fields = redis.call('HMGET', KEYS[1], 'format', 'written')
local format = tonumber(fields[1] or 1) or 1
return math.min(format, tonumber(fields[2] or format) or format)
