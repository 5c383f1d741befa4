-- Read a page of the frames that wait.
--
-- Prelude  window, frame, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- ARGV[1]  'list' or 'zset'
-- ARGV[2]  cursor: index or score, empty at first
-- ARGV[3]  cursor: frame seen last
-- ARGV[4]  frames, at most
-- Returns  the next cursor: index or score ('end' at the end), and frame; index of the first frame; then the frames
-- Source   RedissonDelayedQueue.readAllAsync and getValue, page by page

local page = read_page(keys.walked, ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), PAGE_BYTES)
local where, frame = cursor_behind(page, keys.walked, ARGV[1], #page.frames, ARGV[2], ARGV[3])
return { where, frame, page.first, unpack(page.frames) }
