-- Read a stretch of the frames that wait: their sizes, their first bytes, and whether they are in the timeout set.
--
-- Prelude  clock, window, frame, walk
-- Keys     timeout_set, delay_queue
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  what to walk: 'tail', the delay queue from its tail, or 'zset', the timeout set by start time
-- ARGV[3]  cursor: index or score, empty at first
-- ARGV[4]  cursor: frame seen last
-- ARGV[5]  frames
-- ARGV[6]  budget, bytes
-- ARGV[7]  bytes of each frame to return
-- Returns  now (epoch ms); the next cursor: index or score ('end' at the end), and frame; then three a frame: its
--          score, '' if it is only in the list; its size; its first bytes

local kind = ARGV[2]
local cut = tonumber(ARGV[7])
local source = kind == 'tail' and keys.delay_queue or keys.timeout_set
local page = read_page(source, kind, ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), kind == 'zset' and math.huge)
local reply = { math.floor(read_clock(ARGV[1]) / 1000), cursor_behind(page, source, kind, #page.frames, ARGV[3], ARGV[4]) }
for i, frame in ipairs(page.frames) do
  local n = #reply
  reply[n + 1] = page.scores and page.scores[i] or redis.call('ZSCORE', keys.timeout_set, frame) or ''
  reply[n + 2], reply[n + 3] = #frame, frame:sub(1, cut)
end
return reply
