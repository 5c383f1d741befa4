-- Read a stretch of the frames that wait: how long they are, how they begin, and whether they are in the timeout set.
--
-- Prelude  clock, window, frame, stretch
-- Keys     timeout_set, delay_queue
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  what to walk: 'list', the delay queue from its tail, or 'zset', the timeout set by start time
-- ARGV[3]  where to go on: an index or a score, as the last call returned it; empty at first
-- ARGV[4]  the member last seen, as the last call returned it
-- ARGV[5]  frames
-- ARGV[6]  budget, bytes
-- ARGV[7]  bytes of each frame to return
-- Returns  now (epoch ms); where to go on, 'end' at the end; the member last seen; then three a frame: its score, ''
--          where it is in the list alone; its size; its first bytes

local kind = ARGV[2]
local cut = tonumber(ARGV[7])
local entries, is_end = read_stretch(kind == 'list' and keys.delay_queue or keys.timeout_set, kind, ARGV[3], ARGV[4], 'inf',
  tonumber(ARGV[5]), tonumber(ARGV[6]))
local where, place = place_behind(kind, entries, #entries, is_end, ARGV[3], ARGV[4])
local reply = { math.floor(read_clock(ARGV[1]) / 1000), where, place }
for _, entry in ipairs(entries) do
  local n = #reply
  reply[n + 1] = entry.score or redis.call('ZSCORE', keys.timeout_set, entry.frame) or ''
  reply[n + 2], reply[n + 3] = #entry.frame, entry.frame:sub(1, cut)
end
return reply
