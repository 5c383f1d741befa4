-- Look for payloads in a page of what waits.
--
-- Prelude  window, frame, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- ARGV[1]  'list' or 'zset'
-- ARGV[2]  cursor: index, 0 at first
-- ARGV[3]  cursor: frame last seen
-- ARGV[4]  cursor: its score
-- ARGV[5]  frames to look at, at most
-- ARGV[6]  format of the queue, 1 (dLc0) or 2 (Bc0Lc0): a frame that is both is read as that
-- ARGV[7]  and on: payloads, all different
-- Returns  the next cursor: index or -1 at the end, frame, score; then the indexes of the payloads that were found
-- Source   RedissonDelayedQueue.containsAllAsync, page by page

local frames, first, is_last = read_page(keys.walked, ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5]))
local wanted, found = {}, {}
for i = 7, #ARGV do wanted[ARGV[i]] = i - 7 end
for _, frame in ipairs(frames) do
  local payload = unpack_frame(frame, ARGV[6])
  local at = payload and wanted[payload]
  if at then
    found[#found + 1] = at
    wanted[payload] = nil
  end
end
local index, anchor, score = cursor_behind(keys.walked, ARGV[1], first + #frames, frames[#frames] or '', is_last)
return { index, anchor, score, unpack(found) }
