-- Read what lies in the places of a queue, one place after the other, bounded by number and by bytes.
--
-- The timeout set and our sets are read by score, so a place in them is marked by score and member, which a walk finds
-- again whatever came and went. The destination queue has no order but its own. It is read from its tail: new elements
-- come behind the part that was read, and those taken from its head move the part still to come. Elements of the part
-- that was read show by how much.
--
-- Prelude  clock, window, frame, walk, job
-- Keys     timeout_set, returned, destination, leases, retries, held, dead, quarantine, headers, payloads, errors,
--          locators
-- Args     count: elements
--          budget: bytes: the call ends early with the element that exceeds it
--          cut: bytes of each payload to return
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          where: cursor in the first place: score, or what resume() reads; empty: from its beginning on
--          element: cursor: the element read last, or what resume() reads
--          places... (name, lowest, highest): the places to read; lowest and highest score, or empty
-- Reply    now_ms: the present time
--          done: how many places are done
--          where: the cursor in the next
--          element: likewise
--          rows... (place, token, due, attempts, kills, unique, payload, error, priority, first): place counts from 1; token or ''; when it
--            is or was due (epoch ms) or ''; attempts that failed; leases that expired; unique key; error as JSON; when it was due
--            first (epoch ms) or ''

local PLACES = {
  timeout_set = keys.timeout_set, returned = keys.returned, destination = keys.destination, leases = keys.leases,
  retries = keys.retries, held = keys.held, dead = keys.dead, quarantine = keys.quarantine,
}
-- By these scores jobs are due.
local IS_DUE_BY_SCORE = { returned = true, retries = true }
-- The command compares this many elements of a list in 1 ms.
local COMPARED = 20000
local MOST_EQUAL = 16

local count, budget, cut = tonumber(args.count), tonumber(args.budget), tonumber(args.cut)
local where, member = args.where, args.element
local now_ms, rows, byte_count, places_done = math.floor(read_clock() / 1000), {}, 0, 0

local function add(place, token, due, attempts, kills, tail, payload, err, first)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5] = place, token, due, attempts, kills
  rows[n + 6], rows[n + 7], rows[n + 8] = unique_of(tail):sub(2), payload:sub(1, cut), err
  rows[n + 9], rows[n + 10] = priority_of(tail), first
  byte_count = byte_count + #payload + #err
end

local function add_frame(place, frame, score)
  local payload, id, format = unpack_frame(frame, args.format)
  local token, its
  if payload then token, its = located_token(payload, id) end
  if payload and not token then token = foreign_name(format, score, id) end
  add(place, token or '', score, 0, 0, its and its.tail or '', payload or frame, '', score)
end

local function add_lying(place, payload)
  local token, its = located_token(payload)
  -- Somebody may have put in a copy of a job that still waits elsewhere.
  if token and find_frame(keys.timeout_set, its, token) then token, its = nil, nil end
  local due = its and its.start or ''
  add(place, token or '', due, 0, 0, its and its.tail or '', payload, '', due)
  return token
end

local function add_token(place, token, score, is_due)
  local job = job_of(token) or {}
  local payload = redis.call('HGET', keys.payloads, token) or ''
  local err = redis.call('HGET', keys.errors, token) or ''
  add(place, token, is_due and score or job.start or '', job.attempts or 0, job.kills or 0, job.tail or '', payload, err, job.start or '')
end

-- Where an element of a list lies that lay at `index`. Of equal elements the nearest counts.
local function find_lying(list, index, payload)
  if redis.call('LINDEX', list, index) == payload then return index end
  for rank = 1, -1, -2 do
    local nearest
    for _, at in ipairs(redis.call('LPOS', list, payload, 'RANK', rank, 'COUNT', MOST_EQUAL, 'MAXLEN', COMPARED)) do
      if not nearest or math.abs(at - index) < math.abs(nearest - index) then nearest = at end
    end
    if nearest then return nearest end
  end
end

-- A cursor in a list is the index of the next element, and some of those that were read, as index:bytes; and those
-- elements, one behind the other. If none of them is there any more, elements may be read twice, and none is skipped.
local function resume(list, cursor, elements)
  local next_index, begin = tonumber(cursor:match('^%-?%d+')), 1
  for index, size in cursor:gmatch('(%d+):(%d+)') do
    index, size = tonumber(index), tonumber(size)
    local at = find_lying(list, index, elements:sub(begin, begin + size - 1))
    if at then return next_index + at - index end
    begin = begin + size
  end
  return next_index
end

-- marked: which elements of a page have something that tells them from all others. The last, the first and one between
-- go into the cursor.
local function mark_place(page, read, marked)
  if #marked == 0 then marked = { read } end
  local cursor, elements = { page.first - read }, {}
  for _, n in ipairs({ marked[#marked], marked[math.ceil(#marked / 2)], marked[1] }) do
    cursor[#cursor + 1] = string.format('%d:%d', page.first - n + 1, #page.frames[n])
    elements[#elements + 1] = page.frames[n]
  end
  return table.concat(cursor, ' '), table.concat(elements)
end

for i = args.places, #ARGV, #args.places do
  local name, place = args.places[i].name, (i - args.places) / #args.places + 1
  local key, kind = PLACES[name], name == 'destination' and 'tail' or 'zset'
  if kind == 'tail' and where ~= '' then
    where = resume(key, where, member)
  elseif where == '' then
    where, member = args.places[i].lowest, ''
  end
  local highest = args.places[i].highest == '' and math.huge or tonumber(args.places[i].highest)
  local page = read_page(key, kind, where, member, count - #rows / 10, budget - byte_count, kind == 'zset' and highest)
  local read, marked = 0, {}
  for n, found in ipairs(page.frames) do
    if byte_count >= budget then break end
    if kind == 'tail' then
      if add_lying(place, found) then marked[#marked + 1] = n end
    elseif name == 'timeout_set' then
      add_frame(place, found, page.scores[n])
    else
      add_token(place, found, page.scores[n], IS_DUE_BY_SCORE[name])
    end
    read = n
  end
  where, member = cursor_behind(page, key, kind, read, where, member)
  if where ~= 'end' then
    if kind == 'tail' and read > 0 then where, member = mark_place(page, read, marked) end
    return { now_ms, places_done, where, member, rows }
  end
  places_done, where, member = place, '', ''
end
return { now_ms, places_done, '', '', rows }
