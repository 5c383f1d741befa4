-- Take the next page of jobs out of a queue, to be put into another server, and hold them here until end_page.lua. Safe to
-- repeat: a page that is there already is read again.
--
-- Prelude  clock, count, window, frame, list, job, held, service, moving
-- Keys     source, delay_queue, held, held_tasks, headers, payloads, locators, errors, notes, ended, counters, ranked,
--          control, moving, moving_from, slots
-- Where    source: the set or list that the page is taken from
-- Args     run: id of the run; empty: only read, and change nothing
--          page: number of the page, from 1 on
--          source: what the page is taken from: 'frames', 'destination', 'retries', 'returned', 'held', 'leases', 'dead', 'quarantine'; of
--            the leases only those that ended more than a minute ago, as nobody works there who would notice; but none that a
--            gap spares
--          skip: how many elements there to pass over
--          most: most elements to look at
--          budget: bytes of payloads, about
--          format: frame format of the queue, 1 (dLc0) or 2 (Bc0Lc0)
--          key_ids: ids of keys, one after the other: jobs that are signed with another stay; empty: all jobs go
-- Reply    is_other: 1 if the queue has another run, or none; else 0
--          run: the id of the run that the queue has
--          looked: how many elements it looked at
--          stay: how many of them stay, as they belong to something that goes on here, or to another project
--          jobs... (place, token, score, header, payload, error, history): place is the letter of its place

local now_ms, run, page, source = math.floor(read_clock() / 1000), args.run, tonumber(args.page), args.source
local skip, most, budget, format = tonumber(args.skip), math.min(tonumber(args.most), 500), tonumber(args.budget), args.format
local ours = {}
for id in args.key_ids:gmatch('....') do ours[id] = true end

local function reply_of(looked, stay, jobs)
  local rows = {}
  for _, job in ipairs(jobs) do
    local n = #rows
    rows[n + 1], rows[n + 2], rows[n + 3] = job.place, job.token, string.format('%.17g', job.score)
    rows[n + 4], rows[n + 5], rows[n + 6], rows[n + 7] = job.header, job.payload, job.error, job.history
  end
  return { 0, run, looked, stay, rows }
end

if run ~= '' then
  local known, _, pages = read_run()
  if known ~= run or page > pages + 1 then return { 1, known or '', 0, 0, {} } end
  if page <= pages then return reply_of(0, 0, (read_moving(page))) end
end

local looked, stay, byte_count, jobs, members, places = 0, 0, 0, {}, {}, {}

-- What runs here is not moved, and neither is what waits for it: a job of a batch, or one behind another.
local function stays(tail)
  if batch_of(tail) then return true end
  local _, ahead = run_of(tail)
  local other = ahead and job_of(ahead)
  return other and other.fence ~= NOBODY
end

-- Another project has the same queue. A foreign payload may have a MAC address, which is no key.
local function is_theirs(payload)
  local key = args.key_ids ~= '' and token_of(payload) and key_of(payload)
  return key and not ours[key]
end

local function add(place, token, score, header, payload, failure)
  byte_count = byte_count + #payload
  jobs[#jobs + 1] = { place = place, token = token, score = score, header = header, payload = payload, error = failure or '',
    history = '' }
end

local function fresh_header(start, tail)
  local first, ahead = run_of(tail)
  return write_job({ start = start, tail = ahead and with_run(tail, first) or tail })
end

-- An element of somebody else gets a token, by which it is held.
local function foreign_token()
  return (run .. string.format('%06d%04d', page % 1000000, #jobs + 1)):sub(1, 22)
end

local function look_at_frame(member, score)
  local payload, id = unpack_frame(member, format)
  local start = is_score(score) and score or 0
  if not payload then
    add('m', foreign_token(), score, fresh_header(start, ''), member)
    return true
  end
  if is_theirs(payload) then return false end
  local token, its = located_token(payload, id)
  if token and (redis.call('HEXISTS', keys.headers, token) == 1 or stays(its.tail)) then return false end
  if token then
    add('w', token, score, fresh_header(start, its.tail), payload)
  else
    add('f', foreign_token(), score, fresh_header(start, ''), payload)
  end
  return true
end

local function look_at_lying(payload)
  if is_theirs(payload) then return false end
  local token, mac = token_of(payload)
  local its = token and place_of(token)
  if not its or mac ~= its.mac or its.id == UNSURE then
    -- A copy of a job that is here goes when a worker meets it.
    if token and redis.call('HEXISTS', keys.headers, token) == 1 then return false end
    add('l', foreign_token(), now_ms, fresh_header(now_ms, ''), payload)
    return true
  end
  local note = redis.call('HGET', keys.notes, token)
  if its.format ~= 0 or note == 'cancel' or stays(its.tail) or redis.call('HEXISTS', keys.headers, token) == 1
      or how_ended(keys.ended, now_ms, token) then
    return false
  end
  local start = note and tonumber(note) or its.start
  add('w', token, start, fresh_header(start, its.tail), payload)
  return true
end

local OVER_MS = 60000
local LETTERS = { retries = 'r', returned = 'e', held = 'h', leases = 'h', dead = 'd', quarantine = 'q' }
local names, slots = {}, {}
local over_ms = source == 'leases' and math.min(now_ms - OVER_MS, over_by(read_service(keys.control), now_ms))
local function look_at_token(token, score)
  local payload, failure = redis.call('HGET', keys.payloads, token), redis.call('HGET', keys.errors, token)
  if not payload or is_theirs(payload) then return false end
  local header = redis.call('HGET', keys.headers, token) or ''
  local job = read_job(header)
  local name = source == 'held' and read_held(failure)
  if name and (named('batch', name) or named('moving', name)) then return false end
  if job then
    if source ~= 'dead' and source ~= 'quarantine' and stays(job.tail) then return false end
    local first, ahead = run_of(job.tail)
    job.fence, job.claimed = nil, nil
    if source == 'leases' then
      job.owner = nil
      local limit = limit_of(job.tail)
      if limit then slots[#slots + 1] = limit .. '\0' .. token end
    end
    if ahead then job.tail = with_run(job.tail, first) end
    header = write_job(job)
  else
    header = fresh_header(is_score(score) and score or 0, '')
  end
  if name and job then names[#names + 1] = held_member(name, job.start, job.tail, token) end
  add(LETTERS[source], token, score, header, payload, failure)
  jobs[#jobs].history = redis.call('HGET', keys.errors, HISTORY .. token) or ''
  return true
end

local function note(is_taken, member)
  looked = looked + 1
  if not is_taken then
    stay = stay + 1
  elseif source == 'destination' then
    places[#places + 1] = skip + looked - 1
  else
    members[#members + 1] = member
  end
end

local size, length, foreign = 0, redis.call('LLEN', keys.delay_queue), 0
while looked < most and byte_count < budget do
  local part
  if source == 'frames' or source == 'destination' then
    size = math.min(next_size(size, looked, byte_count, budget), most - looked)
  else
    size = math.min(WIDEST, most - looked)
  end
  local from = skip + looked
  if source == 'destination' then
    part = redis.call('LRANGE', keys.source, from, from + size - 1)
    for _, payload in ipairs(part) do note(look_at_lying(payload)) end
  else
    part = redis.call('ZRANGE', keys.source, from, from + size - 1, 'WITHSCORES')
    if source == 'leases' then
      while part[1] and tonumber(part[#part]) > over_ms do part[#part], part[#part - 1] = nil, nil end
    end
    for i = 1, #part, 2 do
      if source == 'frames' and length > 0 and is_foreign(part[i]) then
        foreign = foreign + 1
        if foreign > most_foreign(length, (byte_count + #part[i]) / (looked + 1)) then
          part = {}
          break
        end
      end
      local is_taken
      if source == 'frames' then
        is_taken = look_at_frame(part[i], tonumber(part[i + 1]))
      else
        is_taken = look_at_token(part[i], tonumber(part[i + 1]))
      end
      note(is_taken, part[i])
    end
  end
  if #part == 0 then break end
end
if run == '' or #jobs == 0 then return reply_of(looked, stay, jobs) end

check_hashes(keys.headers, keys.payloads, keys.errors, keys.locators, keys.notes, keys.counters, keys.moving_from)
check_sets(keys.held, keys.held_tasks, keys.ranked, keys.moving, keys.slots)
-- Removals first, which a full server does not refuse.
local tokens, held, tasks, headers, payloads, errors, pages, origins = {}, {}, {}, {}, {}, {}, {}, {}
local name, why = reason_of('moving', run), nil
why = held_error(name, WHY_MOVING, now_ms)
for i, job in ipairs(jobs) do
  local its = read_job(job.header)
  tokens[i] = job.token
  held[2 * i - 1], held[2 * i] = now_ms + FOR_EVER, job.token
  tasks[2 * i - 1], tasks[2 * i] = 0, held_member(name, its.start, its.tail, job.token)
  headers[2 * i - 1], headers[2 * i] = job.token, job.header
  payloads[2 * i - 1], payloads[2 * i] = job.token, job.payload
  errors[2 * i - 1], errors[2 * i] = job.token, why
  pages[2 * i - 1], pages[2 * i] = page, job.token
  origins[2 * i - 1], origins[2 * i] = job.token, job.place .. string.format('%.17g', job.score) .. '\0' .. job.error
end
if source == 'destination' then
  if places[#places] == #places - 1 then
    redis.call('LTRIM', keys.source, #places, -1)
  else
    -- No payload begins with the id of this run.
    local gone = run .. ' gone'
    for _, place in ipairs(places) do redis.call('LSET', keys.source, place, gone) end
    redis.call('LREM', keys.source, #places, gone)
  end
else
  local listed = source == 'frames' and locate_listed(keys.delay_queue, members, keys.counters)
  redis.call('ZREM', keys.source, unpack(members))
  if listed then unlist(keys.delay_queue, keys.counters, listed) end
end
if #slots > 0 then redis.call('ZREM', keys.slots, unpack(slots)) end
if #names > 0 then redis.call('ZREM', keys.held_tasks, unpack(names)) end
redis.call('ZREM', keys.ranked, unpack(tokens))
redis.call('HDEL', keys.locators, unpack(tokens))
redis.call('HDEL', keys.notes, unpack(tokens))
redis.call('ZADD', keys.held, unpack(held))
redis.call('ZADD', keys.held_tasks, unpack(tasks))
redis.call('HSET', keys.headers, unpack(headers))
redis.call('HSET', keys.payloads, unpack(payloads))
redis.call('HSET', keys.errors, unpack(errors))
redis.call('ZADD', keys.moving, unpack(pages))
redis.call('HSET', keys.moving_from, unpack(origins))
local _, kind = read_run()
redis.call('HSET', keys.control, 'moving', run .. ' ' .. kind .. ' ' .. page)
return reply_of(looked, stay, jobs)
