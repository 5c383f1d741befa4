-- Read a stretch of the frames that wait: their sizes, their first bytes, and whether they are in the timeout set.
--
-- Prelude  clock, window, frame, walk
-- Keys     timeout_set, delay_queue
-- Args     kind: what to walk: 'tail', the delay queue from its tail, or 'zset', the timeout set by start time
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          count: frames
--          budget: bytes
--          cut: bytes of each frame to return
-- Reply    now_ms: the present time
--          where: the next cursor: index or score ('end' at the end)
--          frame: likewise
--          frames... (score, size, head): score is '' if it is only in the list; head has its first bytes

local kind = args.kind
local cut = tonumber(args.cut)
local source = kind == 'tail' and keys.delay_queue or keys.timeout_set
local page = read_page(source, kind, args.where, args.frame, tonumber(args.count), tonumber(args.budget), kind == 'zset' and math.huge)
local now_ms, frames = math.floor(read_clock() / 1000), {}
local where, last = cursor_behind(page, source, kind, #page.frames, args.where, args.frame)
for i, frame in ipairs(page.frames) do
  local score = page.scores and page.scores[i] or redis.call('ZSCORE', keys.timeout_set, frame) or ''
  frames[3 * i - 2], frames[3 * i - 1], frames[3 * i] = score, #frame, frame:sub(1, cut)
end
return { now_ms, where, last, frames }
