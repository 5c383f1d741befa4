-- Choose the format of a queue: the one written to it from now on, and the one that its workers have to read.
--
-- Prelude  clock, formats
-- Keys     control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  the format to choose
-- ARGV[3]  the latest format that the caller reads; who chooses that one leaves what is written to the workers again
-- ARGV[4]  how long a process counts after it said what it reads, ms
-- ARGV[5]  what to do: 'begin' raises the format, or has an earlier one written; 'force' does so even if workers read
--          only earlier ones; 'end' lowers the format to the one that is written, once nothing later waits
-- Returns  the format of the queue before; how many processes read only earlier formats than the chosen one. Nothing
--          has changed if the queue's format is later than the caller reads; or if 'begin' was to raise it, and there
--          are such processes

local chosen, latest, kept_ms, step = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

local format, written, reads = read_formats(keys.control, now_ms, kept_ms)
local behind = count_behind(reads, chosen)
if format > latest or (step == 'begin' and chosen > format and behind > 0) then return { format, behind } end
-- Somebody else has chosen another format meanwhile.
if step == 'end' and written ~= chosen then return { format, behind } end

redis.call('HDEL', keys.control, '')
if chosen < latest then
  redis.call('HSET', keys.control, 'written', chosen)
else
  redis.call('HDEL', keys.control, 'written')
end
if chosen > format or step == 'end' then redis.call('HSET', keys.control, 'format', chosen) end
return { format, behind }
