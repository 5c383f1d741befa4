-- Read a page of the frames that wait.
--
-- Prelude  window, walk
-- KEYS[1]  list  delay queue; or zset  timeout set
-- ARGV[1]  'list' or 'zset'
-- ARGV[2]  cursor: index, 0 at first
-- ARGV[3]  cursor: frame last seen
-- ARGV[4]  cursor: its score
-- ARGV[5]  frames, at most
-- Returns  the next cursor: index or -1 at the end, frame, score; index of the first frame; then the frames
-- Source   RedissonDelayedQueue.readAllAsync and getValue, page by page

local frames, first, is_last = read_page(KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5]))
local index, anchor, score = cursor_behind(KEYS[1], ARGV[1], first + #frames, frames[#frames] or '', is_last)
return { index, anchor, score, first, unpack(frames) }
