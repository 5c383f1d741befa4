-- Rewrite a stretch of frames to the other format, each in its place: same 8 bytes, same score, same index. Safe to
-- repeat: frames that can be read in the target format are left alone. Frames of neither format go into quarantine.
--
-- Prelude  clock, count, window, frame, list, job, transfer, walk
-- Keys     timeout_set, delay_queue, locators, quarantine, payloads, errors, counters
-- Args     kind: what to walk: 'tail', the delay queue from its tail, or 'zset', the timeout set by start time
--          where: cursor: index or score, empty at first
--          frame: cursor: frame seen last
--          until_ms: last score to look at, of the timeout set
--          target: format to write, 1 (dLc0) or 2 (Bc0Lc0)
--          count: frames
--          budget: bytes
--          lookups: frames that may be looked for in the delay queue, a scan each
--          seed: 16 random characters, to name what goes into quarantine
--          held: frames that begin with this stay as they are; empty: rewrite all
-- Reply    where: the next cursor: index or score ('end' at the end)
--          frame: likewise
--          seen: frames
--          rewritten: of these
--          alone: how many of those are only in the delay queue
--          quarantined: of the frames seen

local now_ms, kind, target, seed = math.floor(read_clock() / 1000), args.kind, tonumber(args.target), args.seed
local lookups, held = tonumber(args.lookups), args.held

check_sets(keys.timeout_set, keys.quarantine)
check_hashes(keys.locators, keys.payloads, keys.errors, keys.counters)
local length = redis.call('LLEN', keys.delay_queue)
sweep_tombstones(keys.delay_queue, keys.counters)
read_numbers(keys.counters)

-- Seventeen bytes can fit both formats: they are read in the target format, now and when the call is repeated.
local function is_target(frame, format)
  return format == target
    or (target == 1 and #frame == 17 and struct.unpack('<L', frame, 9) == 1)
end

local function index_of(frame)
  local number = unlisted_number(frame)
  if length == 0 or is_ours(number) then return nil end
  lookups = lookups - 1
  -- Frames offered meanwhile lie at the tail, so the search begins there.
  return redis.call('LPOS', keys.delay_queue, frame, 'RANK', -1) or nil
end

local source = kind == 'tail' and keys.delay_queue or keys.timeout_set
local page = read_page(source, kind, args.where, args.frame, tonumber(args.count), tonumber(args.budget), kind == 'zset' and tonumber(args.until_ms))
local done, alone, old, rewritten, bad, members = 0, 0, {}, {}, {}, {}
for i, frame in ipairs(page.frames) do
  local entry = { frame = frame }
  if kind == 'tail' then
    entry.index = page.first - i + 1
  else
    entry.score = page.scores[i]
  end
  local payload, id, format = unpack_frame(frame)
  local is_held = held ~= '' and entry.frame:sub(1, #held) == held
  if not is_held and not (payload and is_target(entry.frame, format)) then
    if kind == 'tail' then
      entry.score = redis.call('ZSCORE', keys.timeout_set, entry.frame) or nil
    elseif lookups > 0 then
      entry.index = index_of(entry.frame)
    else
      break
    end
    old[#old + 1] = entry.frame
    if payload then
      entry.id, entry.format, entry.new_id = id, format, id
      rewritten[#rewritten + 1] = entry
      entry.token, entry.mac = token_of(payload)
      entry.changed = target == 2 and '\8' .. entry.frame or entry.frame:sub(2)
      if not entry.score then
        alone = alone + 1
      elseif redis.call('ZSCORE', keys.timeout_set, entry.changed) then
        -- Somebody has put the same element in twice, once in each format: with new bytes for this one, neither is
        -- lost.
        entry.new_id = struct.pack('>c6I2', '\0' .. seed:sub(1, 5), #rewritten)
        entry.changed = (target == 2 and '\8' or '') .. entry.new_id .. entry.changed:sub(target == 2 and 10 or 9)
      end
      if entry.score then
        members[#members + 1] = entry.score
        members[#members + 1] = entry.changed
      end
    else
      bad[#bad + 1] = entry
    end
  end
  done = done + 1
end
local where, last_frame = cursor_behind(page, source, kind, done, args.where, args.frame)
local reply = { where, last_frame, done, #rewritten, alone, #bad }
if #old == 0 then return reply end

local places = {}
for _, entry in ipairs(rewritten) do
  local place = entry.token and place_of(entry.token)
  -- A copy that somebody offered by hand is not the job.
  if place and place.format == entry.format and place.id == entry.id and place.mac == entry.mac then
    place.format, place.id = target, entry.new_id
    places[#places + 1] = entry.token
    places[#places + 1] = write_locator(place)
  end
end
local indexes = {}
for _, entry in ipairs(bad) do indexes[#indexes + 1] = entry.index end
table.sort(indexes)

redis.call('ZREM', keys.timeout_set, unpack(old))
if #members > 0 then redis.call('ZADD', keys.timeout_set, unpack(members)) end
for _, entry in ipairs(rewritten) do
  if entry.index then redis.call('LSET', keys.delay_queue, entry.index, entry.changed) end
end
if #places > 0 then redis.call('HSET', keys.locators, unpack(places)) end
if #indexes > 0 then unlist(keys.delay_queue, keys.counters, { indexes = indexes, rest = {} }) end
for i, entry in ipairs(bad) do
  quarantine_frame(keys.quarantine, keys.payloads, keys.errors, keys.counters, now_ms,
    seed .. string.format('r%05d', i), entry.frame)
end
return reply
