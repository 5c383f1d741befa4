-- Take elements out by their payloads, among a page of the frames that wait: from the timeout set and the delay queue.
--
-- Prelude  clock, count, window, frame, list, job, unique, walk, drop
-- Keys     timeout_set, delay_queue, locators, unique, ended, counters, ranked
-- Args     kind: what to walk: 'list', the delay queue, or 'zset', the timeout set
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          count: frames to look at, at most
--          which: which frames to take: 'first', the first with one of the payloads; 'all' with one; 'others', all without
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          far: elements that an LREM may pass on its way to a few frames
--          payloads...: those looked for
-- Reply    where: the next cursor: index or score ('end' at the end)
--          frame: likewise
--          removed: elements taken out
--          left...: frames that the caller is to take out together with those of other pages: a few, each far from both ends of the
--            delay queue
-- Source   RedissonDelayedQueue.removeAsync, removeAllAsync, retainAllAsync, page by page

-- More frames than these are worth a scan of their own.
local FEW = 100

local now_ms = math.floor(read_clock() / 1000)
local kind, which = args.kind, args.which
local far = tonumber(args.far)
local source = kind == 'list' and keys.delay_queue or keys.timeout_set

redis.call('ZCARD', keys.timeout_set)
redis.call('LLEN', keys.delay_queue)
sweep_tombstones(keys.delay_queue, keys.counters)
local page = read_page(source, kind, args.where, args.frame, tonumber(args.count), PAGE_BYTES)
local wanted = {}
for i = args.payloads, #ARGV do wanted[args.payloads[i]] = true end

local frames, indexes, seen, kept, last_kept = {}, {}, {}, 0, args.frame
for i, frame in ipairs(page.frames) do
  local payload = unpack_frame(frame, args.format)
  -- A frame that nobody can unpack has no payload to compare, so it stays.
  local is_wanted = payload and ((wanted[payload] or false) ~= (which == 'others'))
  if is_wanted then
    if not seen[frame] then frames[#frames + 1] = frame end
    seen[frame] = true
    indexes[#indexes + 1] = page.first + i - 1
    if which == 'first' then break end
  else
    kept, last_kept = kept + 1, frame
  end
end

-- Whether to leave the frames to the caller. Its search finds only our frames that are in both without a scan for each.
local function is_left()
  if kind ~= 'list' or which == 'first' or #frames == 0 or #frames > FEW then return false end
  local behind = redis.call('LLEN', keys.delay_queue) - indexes[1]
  if math.min(indexes[#indexes], behind) <= far then return false end
  for _, frame in ipairs(frames) do
    if not listed_number(frame) or not redis.call('ZSCORE', keys.timeout_set, frame) then return false end
  end
  return true
end

local left = is_left() and frames or {}
if #left > 0 then frames = {} end
local where, last = cursor_behind(page, source, kind, #page.frames, args.where, args.frame)
if #frames > 0 then
  local plan = { indexes = indexes, rest = {} }
  if kind == 'zset' then plan = locate_listed(keys.delay_queue, frames, keys.counters) end
  -- 'taken', as a caller may offer a job again to give it another delay, and then it must not count as a double.
  drop(frames, plan, 'taken', now_ms)
  if which == 'first' then return { 'end', '', 1, {} } end
end
-- In a list, the removals have moved the frames behind them.
if kind == 'list' and #frames > 0 and where ~= 'end' then where, last = page.first + kept, last_kept end
return { where, last, #frames, left }
