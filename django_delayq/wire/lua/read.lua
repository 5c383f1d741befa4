-- Read a page of the frames that wait.
--
-- Prelude  window, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- ARGV[1]  'list' or 'zset'
-- ARGV[2]  cursor: index, 0 at first
-- ARGV[3]  cursor: frame last seen
-- ARGV[4]  cursor: its score
-- ARGV[5]  frames, at most
-- Returns  the next cursor: index or -1 at the end, frame, score; index of the first frame; then the frames
-- Source   RedissonDelayedQueue.readAllAsync and getValue, page by page

local frames, first, is_last = read_page(keys.walked, ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5]))
local index, anchor, score = cursor_behind(keys.walked, ARGV[1], first + #frames, frames[#frames] or '', is_last)
return { index, anchor, score, first, unpack(frames) }
