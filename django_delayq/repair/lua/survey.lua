-- Read a stretch of the frames that wait: their sizes, their first bytes, and whether they are in the timeout set.
--
-- Prelude  clock, window, frame, walk
-- Keys     timeout_set, delay_queue
-- Args     now_us: epoch us; empty: the server's TIME (tests pass their own)
--          kind: what to walk: 'tail', the delay queue from its tail, or 'zset', the timeout set by start time
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          count: frames
--          budget: bytes
--          cut: bytes of each frame to return
-- Returns  now (epoch ms); the next cursor: index or score ('end' at the end), and frame; then three a frame: its
--          score, '' if it is only in the list; its size; its first bytes

local kind = args.kind
local cut = tonumber(args.cut)
local source = kind == 'tail' and keys.delay_queue or keys.timeout_set
local page = read_page(source, kind, args.where, args.frame, tonumber(args.count), tonumber(args.budget), kind == 'zset' and math.huge)
local reply = { math.floor(read_clock(args.now_us) / 1000), cursor_behind(page, source, kind, #page.frames, args.where, args.frame) }
for i, frame in ipairs(page.frames) do
  local n = #reply
  reply[n + 1] = page.scores and page.scores[i] or redis.call('ZSCORE', keys.timeout_set, frame) or ''
  reply[n + 2], reply[n + 3] = #frame, frame:sub(1, cut)
end
return reply
