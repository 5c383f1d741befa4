-- Read a stretch of the frames that wait: how long they are, how they begin, and whether they are in the timeout set.
--
-- Prelude  clock, window, frame, walk
-- Keys     timeout_set, delay_queue
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  what to walk: 'tail', the delay queue from its tail, or 'zset', the timeout set by start time
-- ARGV[3]  cursor: index or score, empty at first
-- ARGV[4]  cursor: frame last seen
-- ARGV[5]  frames
-- ARGV[6]  budget, bytes
-- ARGV[7]  bytes of each frame to return
-- Returns  now (epoch ms); the next cursor: index or score, 'end' at the end, and frame; then three a frame: its score, ''
--          where it is in the list alone; its size; its first bytes

local kind = ARGV[2]
local cut = tonumber(ARGV[7])
local page = read_page(kind == 'tail' and keys.delay_queue or keys.timeout_set, kind, ARGV[3], ARGV[4], tonumber(ARGV[5]),
  tonumber(ARGV[6]))
local reply = { math.floor(read_clock(ARGV[1]) / 1000), cursor_behind(page, kind, #page.frames, ARGV[3], ARGV[4]) }
for i, frame in ipairs(page.frames) do
  local n = #reply
  reply[n + 1] = kind == 'zset' and page.places[i] or redis.call('ZSCORE', keys.timeout_set, frame) or ''
  reply[n + 2], reply[n + 3] = #frame, frame:sub(1, cut)
end
return reply
