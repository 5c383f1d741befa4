-- Look for payloads in a page of the frames that wait.
--
-- Prelude  window, frame, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- Args     kind: 'list' or 'zset'
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          count: frames to look at, at most
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          payloads...: all different
-- Reply    where: the next cursor: index or score ('end' at the end)
--          frame: likewise
--          indexes...: those of the payloads found
-- Source   RedissonDelayedQueue.containsAllAsync, page by page

local page = read_page(keys.walked, args.kind, args.where, args.frame, tonumber(args.count), PAGE_BYTES)
local wanted, found = {}, {}
for i = args.payloads, #ARGV do wanted[args.payloads[i]] = i - args.payloads end
for _, frame in ipairs(page.frames) do
  local payload = unpack_frame(frame, args.format)
  local at = payload and wanted[payload]
  if at then
    found[#found + 1] = at
    wanted[payload] = nil
  end
end
local where, frame = cursor_behind(page, keys.walked, args.kind, #page.frames, args.where, args.frame)
return { where, frame, found }
