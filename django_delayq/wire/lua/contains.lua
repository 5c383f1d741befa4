-- Look for payloads in a page of the frames that wait.
--
-- Prelude  window, frame, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- ARGV[1]  'list' or 'zset'
-- ARGV[2]  cursor: index or score, empty at first
-- ARGV[3]  cursor: frame seen last
-- ARGV[4]  frames to look at, at most
-- ARGV[5]  format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
-- ARGV[6]  and on: payloads, all different
-- Returns  the next cursor: index or score ('end' at the end), and frame; then the indexes of the payloads found
-- Source   RedissonDelayedQueue.containsAllAsync, page by page

local page = read_page(keys.walked, ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), PAGE_BYTES)
local wanted, found = {}, {}
for i = 6, #ARGV do wanted[ARGV[i]] = i - 6 end
for _, frame in ipairs(page.frames) do
  local payload = unpack_frame(frame, ARGV[5])
  local at = payload and wanted[payload]
  if at then
    found[#found + 1] = at
    wanted[payload] = nil
  end
end
local where, frame = cursor_behind(page, keys.walked, ARGV[1], #page.frames, ARGV[2], ARGV[3])
return { where, frame, unpack(found) }
