-- Read a page of the frames that wait.
--
-- Prelude  window, frame, walk
-- Keys     walked
-- Where    walked: the delay queue or the timeout set
-- Args     kind: 'list' or 'zset'
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          count: frames, at most
-- Reply    where: the next cursor: index or score ('end' at the end)
--          frame: likewise
--          first: index of the first frame
--          frames...: the frames
-- Source   RedissonDelayedQueue.readAllAsync and getValue, page by page

local page = read_page(keys.walked, args.kind, args.where, args.frame, tonumber(args.count), PAGE_BYTES)
local where, frame = cursor_behind(page, keys.walked, args.kind, #page.frames, args.where, args.frame)
return { where, frame, page.first, page.frames }
