-- Say which format a worker process reads. Raise the format of the queue once all living processes read a later one,
-- unless a command has chosen what is written.
--
-- Prelude  clock, formats
-- Keys     control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  owner, 8 bytes
-- ARGV[3]  the latest format that it reads
-- ARGV[4]  how long a process counts after it said so, ms: so long the queue waits for one that has gone
-- Returns  the format of the queue; how many processes read only earlier formats than the caller; the format that a
--          command has chosen to be written, or 0; when this process was here before as far as the server knows,
--          epoch ms or 0; now, epoch ms

local owner, latest, kept_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

local format, written, reads, over = read_formats(keys.control, now_ms, kept_ms)
reads[owner] = latest
local lowest = latest
for _, their in pairs(reads) do lowest = math.min(lowest, their) end

local field = 'reads:' .. owner
local before = redis.call('HGET', keys.control, field)
local before_ms = before and tonumber(before:match('^%d+')) or 0
redis.call('HDEL', keys.control, '', unpack(over))
redis.call('HSET', keys.control, field, string.format('%.0f %d', now_ms, latest))
if lowest > format and not written then
  format = lowest
  redis.call('HSET', keys.control, 'format', format)
end
return { format, count_behind(reads, latest), written or 0, before_ms, now_ms }
