-- Lease what is waiting, up to a number and a size: expired leases, due retries, what was returned before its first
-- attempt and is due, what others put into the destination queue, due frames.
--
-- Prelude  clock, count, window, frame, list, job, service, transfer
-- Keys     timeout_set, delay_queue, destination, leases, retries, headers, payloads, locators, notes, unique,
--          ended, counters, claims, dead, quarantine, errors, returned, control, channel
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  owner, 8 bytes: the process that asks
-- ARGV[3]  request, 8 random bytes: the fencing token of every lease given; the same again returns the same leases
-- ARGV[4]  limit, jobs; 0 transfers only
-- ARGV[5]  budget, bytes
-- ARGV[6]  lease, ms
-- ARGV[7]  what to do with due frames: 'direct' leases them, 'shared' transfers them, 'take' leaves them alone
-- ARGV[8]  most frames to transfer
-- ARGV[9]  leases that may expire before a job is a dead letter; -1: any number
-- ARGV[10]  16 random characters: what is no job as far as a script can tell is given a token that starts so; then
--          'l' where it lay in the destination queue, 'f' where it came in a frame
-- ARGV[11]  format of the queue, 1 (dLc0) or 2 (Bc0Lc0): a frame that is both is read as that
-- ARGV[12]  the latest format that the caller reads; where the queue has a later one it gets nothing, and is told
-- ARGV[13]  most leases of a job that may have expired without making it a suspect; -1: any number
-- ARGV[14]  suspects to lease, 0 or 1; the others are put off
-- ARGV[15]  for how long, ms
-- Returns  now (epoch us); us until the next event, 0 when more waits now, -1 when nothing does; frames
--          transferred; payloads dropped as double; jobs dropped whose payload is gone; suspects put off; then six a
--          job: token, attempts that failed, leases that expired, start time (epoch ms), payload, sum of 1 where the
--          token is not the payload's own, 2 if it was given back because its lease had ended before it began, 4 where
--          the job of the payload's own token ended a moment ago. Where the queue's format is too late for the
--          caller, that format is the seventh and last

-- Suspects that one call puts off.
local PUT_OFF = 500

local now_us, owner, request = read_clock(ARGV[1]), ARGV[2], ARGV[3]
local limit, budget, lease_ms, mode = math.min(tonumber(ARGV[4]), MOST), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local transfer_limit, max_kills, seed = math.min(tonumber(ARGV[8]), MOST), tonumber(ARGV[9]), ARGV[10]
local format, safe_kills, suspects = ARGV[11], tonumber(ARGV[13]), tonumber(ARGV[14])
local now_ms = math.floor(now_us / 1000)

-- What is newer than the caller it would misread.
local queue_format = tonumber(redis.call('HGET', keys.control, 'format') or 1) or 1
if queue_format > tonumber(ARGV[12]) then return { now_us, -1, 0, 0, 0, 0, queue_format } end

local reply, transferred, doubles, vanished, put_off = { now_us, -1, 0, 0, 0, 0 }, 0, 0, {}, {}
-- Before anything is leased, so that a gap is known to this claim.
local service = read_service(keys.control)
local served = serve(service, keys.leases, now_ms, lease_ms, false)
service = served or service
local function hand_out(token, attempts, kills, start, payload, foreign, late)
  local n, flags = #reply, late and 2 or 0
  if foreign then
    local own = token_of(payload)
    local ended = own and how_ended(keys.ended, now_ms, own)
    -- What was taken out may be put in again.
    flags = flags + 1 + (ended and ended ~= 'taken' and 4 or 0)
  end
  reply[n + 1], reply[n + 2], reply[n + 3] = token, attempts, kills
  reply[n + 4], reply[n + 5], reply[n + 6] = start, payload, flags
end

-- When the first of a set comes. It is asked for once, and again where this has written to the set.
local firsts = {}
local function head_of(set)
  if not firsts[set] then firsts[set] = tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or math.huge) end
  return firsts[set]
end

local function finish()
  local wait = math.huge
  if mode ~= 'take' then
    local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
    if head then wait = tonumber(head) end
  end
  -- A caller without room learns only when the next transfer is due, and not what waits for room.
  if limit > 0 then
    if mode ~= 'take' then
      wait = math.min(wait, head_of(keys.retries), head_of(keys.returned))
    end
    local head = redis.call('ZRANGE', keys.leases, 0, 0, 'WITHSCORES')[2]
    if head then
      local lease_end = tonumber(head)
      if is_spared(service, lease_end) then lease_end = service.till end
      wait = math.min(wait, lease_end)
    end
    if redis.call('LLEN', keys.destination) > 0 then wait = 0 end
  end
  if wait < math.huge then reply[2] = math.max(0, wait * 1000 - now_us) end
  reply[3], reply[4], reply[5], reply[6] = transferred, doubles, #vanished, #put_off
  return reply
end

-- A repeat: its reply was lost. The leases it was given end together, and carry its fencing token.
local last = redis.call('HGET', keys.claims, owner) or ''
if last:sub(1, 8) == request then
  local till = #last >= 16 and decimal(struct.unpack('<d', last, 9)) or '0'
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', keys.leases, till, till)) do
    local attempts, kills, start, fence = read_header(redis.call('HGET', keys.headers, token))
    local payload = fence == request and redis.call('HGET', keys.payloads, token)
    if payload then
      hand_out(token, attempts, kills, start, payload, token_of(payload) ~= token, last:find(token, 17, true) ~= nil)
    end
  end
  return finish()
end

-- Reads. Nothing is written before everything is known.

local count, byte_count = 0, 0
local leased, frames, seen, buried = {}, {}, {}, {}
local expired, retried, returned, popped, gone, moved, cancelled = {}, {}, {}, 0, {}, {}, {}
local bad, vanished_keys = {}, {}

local function is_full()
  return count >= limit or byte_count >= budget
end

local function lease(token, attempts, kills, start, key, payload, fresh, foreign, late, spared)
  count, byte_count = count + 1, byte_count + #payload
  leased[count] = { token, attempts, kills, start, key, payload, fresh, foreign, late, spared }
  seen[token] = payload
end

-- It fills no room, but its payload was read.
local function bury(token, attempts, kills, start, key, payload)
  byte_count = byte_count + #payload
  buried[#buried + 1] = { token, attempts, kills, start, key }
  seen[token] = payload
end

-- Whether a payload that only says whose it is is that of a job which is with us already, to the last byte.
local function is_copy(token, payload)
  return seen[token] == payload
    or (redis.call('HEXISTS', keys.headers, token) == 1 and redis.call('HGET', keys.payloads, token) == payload)
end

-- Somebody may have deleted a key of ours. Without its header a job begins anew; without its payload nothing can be
-- run, so all that is left of it goes.
local function take_up(token, lease_end)
  local attempts, kills, start, _, holder, key, was_spared = read_header(redis.call('HGET', keys.headers, token))
  attempts, kills, start, key = attempts or 0, kills or 0, start or now_ms, key or ''
  local spare = lease_end and is_spared(service, lease_end)
  -- Once: a job that takes its whole machine down each time would else be run for ever.
  if lease_end and (was_spared or not spare) then kills = kills + 1 end
  spare = spare or was_spared
  local is_over = max_kills >= 0 and kills > max_kills
  local is_suspect = safe_kills >= 0 and kills > safe_kills and not is_over
  if is_suspect and suspects == 0 then
    -- It fills no room, and its payload is not read. Never leased, it counts no kill where the caller dies.
    put_off[#put_off + 1] = { token, attempts, kills, start, key, spare, lease_end }
    return
  end
  local payload = redis.call('HGET', keys.payloads, token)
  if not payload then
    vanished[#vanished + 1] = token
    vanished_keys[#vanished] = key
  elseif is_over then
    bury(token, attempts, kills, start, key, payload)
  else
    if is_suspect then suspects = suspects - 1 end
    lease(token, attempts, kills, start, key, payload, false, token_of(payload) ~= token, holder == LATE, spare)
  end
end

-- Suspects that are put off hide nothing behind them.
local function take_up_due(set, till, taken, is_lease)
  local before
  while not is_full() and #put_off < PUT_OFF and #put_off ~= before do
    before = #put_off
    local found = redis.call('ZRANGEBYSCORE', set, '-inf', till, 'WITHSCORES', 'LIMIT', #taken, limit - count)
    for i = 1, #found, 2 do
      if is_full() or #put_off == PUT_OFF then break end
      taken[#taken + 1] = found[i]
      take_up(found[i], is_lease and tonumber(found[i + 1]))
    end
  end
end

if limit > 0 then
  take_up_due(keys.leases, over_by(service, now_ms), expired, true)
  if mode ~= 'take' then
    if head_of(keys.retries) <= now_ms then take_up_due(keys.retries, now_ms, retried) end
    if head_of(keys.returned) <= now_ms then take_up_due(keys.returned, now_ms, returned) end
  end
end

local waiting = redis.call('LLEN', keys.destination)
-- What is dropped, cancelled or moved fills no room, so it is bounded by itself. One at a time: anybody puts elements
-- there, and behind small ones any number may be huge.
while popped < math.min(waiting, MOST) and not is_full() do
  local payload = redis.call('LINDEX', keys.destination, popped)
  popped = popped + 1
  local token, mac = token_of(payload)
  local locator = token and redis.call('HGET', keys.locators, token)
  local start, where, id, key, known = read_locator(locator)
  local is_same, is_early, letter = start and mac == known, false, 'l'
  local is_certain = is_same and (mode ~= 'direct' or where == 0)
  if is_same and id == UNSURE then
    is_certain, letter = false, 'f'
    gone[#gone + 1] = token
  end
  -- Somebody else has transferred it, or has repeated what is still to come.
  local own = is_certain and where ~= 0 and find_frame(keys.timeout_set, start, where, id, token, known)
  if own then
    is_certain = unpack_frame(own, format) == payload
    is_early = is_certain and start > now_ms
  end
  -- One that cannot be read is of no use to anybody.
  if (is_certain and not is_early) or (locator and not start) then gone[#gone + 1] = token end
  local is_used = is_certain and not is_early and (seen[token] or redis.call('HEXISTS', keys.headers, token) == 1)
  -- Somebody has put the beginning of its MAC before other bytes. Which of them is the job a script cannot tell.
  if is_used and not is_copy(token, payload) then is_certain = false end
  if is_early or is_certain and (is_used or how_ended(keys.ended, now_ms, token))
      or (not is_certain and token and is_copy(token, payload)) then
    doubles = doubles + 1
    byte_count = byte_count + #payload
  elseif not is_certain then
    lease(seed .. letter .. string.format('%05d', popped), 0, 0, now_ms, '', payload, true, true)
  else
    local note = redis.call('HGET', keys.notes, token)
    seen[token] = payload
    if note == 'cancel' then
      byte_count = byte_count + #payload
      cancelled[#cancelled + 1] = { token, key }
    elseif note then
      byte_count = byte_count + #payload
      moved[#moved + 1] = { token, tonumber(note), key, payload }
    else
      lease(token, 0, 0, start, key, payload, true)
    end
  end
end

local due_frames = {}
if mode == 'direct' and not is_full() then
  due_frames = find_due(keys.timeout_set, keys.delay_queue, now_ms, limit - count, budget - byte_count)
  local tokens, items = {}, {}
  for i, entry in ipairs(due_frames) do
    local payload, id = unpack_frame(entry[1], format)
    frames[i] = entry[1]
    if not payload then
      bad[#bad + 1] = entry[1]
    else
      local token, mac = token_of(payload)
      -- A foreign payload is looked for like the others, so that all are leased in due order.
      local other = seed .. string.format('f%05d', i)
      tokens[#tokens + 1] = token or other
      items[#items + 1] = { other, entry[2], payload, mac, id }
    end
  end
  if #tokens > 0 then
    local headers = redis.call('HMGET', keys.headers, unpack(tokens))
    local ended = redis.call('ZMSCORE', keys.ended, unpack(tokens))
    local locators = redis.call('HMGET', keys.locators, unpack(tokens))
    for i, item in ipairs(items) do
      local token, start, mac = tokens[i], is_score(item[2]) and item[2] or now_ms, item[4]
      local located, kind, id, key, known = read_locator(locators[i])
      local is_same = mac and mac == known and id ~= UNSURE
      -- Somebody may have taken it out and put it in again. While its own frame waits, another is a copy, or says so.
      local own = is_same and id ~= item[5] and find_frame(keys.timeout_set, located, kind, id, token, known)
      local is_certain, is_double = is_same and not own, false
      local is_used = is_certain and (seen[token] or headers[i])
      if is_certain or (locators[i] and not located) then gone[#gone + 1] = token end
      if is_used and not is_copy(token, item[3]) then is_certain = false end
      if is_certain then
        is_double = is_used or (ended[i] and how_ended(keys.ended, now_ms, token))
      else
        is_double = own and unpack_frame(own, format) == item[3] or (mac and is_copy(token, item[3]))
      end
      if is_double then
        doubles = doubles + 1
      elseif is_certain then
        lease(token, 0, 0, start, key, item[3], true)
      else
        lease(item[1], 0, 0, start, '', item[3], true, true)
      end
    end
  end
elseif mode == 'shared' then
  due_frames = find_due(keys.timeout_set, keys.delay_queue, now_ms, transfer_limit, budget)
  transferred = #due_frames
end

if count == 0 and popped == 0 and #due_frames == 0 and #expired + #retried + #returned == 0 then
  -- Nothing in the destination queue: whatever the notes were about was taken by Java.
  if waiting == 0 and redis.call('HLEN', keys.notes) > 0 then redis.call('UNLINK', keys.notes) end
  if served then write_service(keys.control, keys.leases, served) end
  return finish()
end

if count > 0 and not served then served = serve(service, keys.leases, now_ms, lease_ms, true) end
-- The types of what was not read. Leases were, wherever this writes them; the counters are, before any job is touched.
check_hashes(keys.headers, keys.payloads, keys.unique)
check_sets(keys.ended)
local has_notes = redis.call('HLEN', keys.notes) > 0
if popped > 0 then check_hashes(keys.locators) end
if #bad > 0 or #buried > 0 or #vanished > 0 then
  check_hashes(keys.errors)
  check_sets(keys.quarantine, keys.dead)
end
if #moved > 0 then check_sets(keys.returned) end
if #put_off > 0 then check_sets(keys.retries) end

-- Writes. Removals first, which a full server does not refuse.

if served then write_service(keys.control, keys.leases, served) end
redis.call('HDEL', keys.claims, owner)
sweep_tombstones(keys.delay_queue, keys.counters)
if #frames > 0 then
  local plan = locate_listed(keys.delay_queue, frames, keys.counters, known_indexes(due_frames))
  redis.call('ZREM', keys.timeout_set, unpack(frames))
  unlist(keys.delay_queue, keys.counters, plan)
elseif mode == 'shared' then
  transfer_due(plan_transfer(keys.timeout_set, keys.delay_queue, keys.locators, keys.counters, due_frames, format), now_ms, seed)
end
if popped > 0 then redis.call('LTRIM', keys.destination, popped, -1) end
if #gone > 0 then
  redis.call('HDEL', keys.locators, unpack(gone))
  if has_notes then redis.call('HDEL', keys.notes, unpack(gone)) end
end
if #expired > 0 then redis.call('ZREM', keys.leases, unpack(expired)) end
if #retried > 0 then redis.call('ZREM', keys.retries, unpack(retried)) end
if #returned > 0 then redis.call('ZREM', keys.returned, unpack(returned)) end
if #vanished > 0 then
  redis.call('HDEL', keys.headers, unpack(vanished))
  redis.call('HDEL', keys.errors, unpack(vanished))
  for i, token in ipairs(vanished) do release_unique(keys.unique, vanished_keys[i], token) end
end
for i, frame in ipairs(bad) do
  quarantine_frame(keys.quarantine, keys.payloads, keys.errors, keys.counters, now_ms,
    seed .. string.format('b%05d', i), frame)
end

local ends, heads, bodies, late = {}, {}, {}, {}
local lease_end = now_ms + lease_ms
for i, job in ipairs(leased) do
  local token, key = job[1], job[5]
  if key:byte(1) == 115 then
    release_unique(keys.unique, key, token)
    key = ''
  end
  ends[2 * i - 1], ends[2 * i] = lease_end, token
  heads[2 * i - 1], heads[2 * i] = token, struct.pack(HEADER, job[2], job[10] and job[3] + SPARED or job[3], job[4],
    request, owner) .. key
  if job[7] then
    bodies[#bodies + 1] = token
    bodies[#bodies + 1] = job[6]
  end
  if job[9] then late[#late + 1] = token end
  hand_out(token, job[2], job[3], job[4], job[6], job[8], job[9])
end
if count > 0 then
  redis.call('ZADD', keys.leases, unpack(ends))
  redis.call('HSET', keys.headers, unpack(heads))
  if #bodies > 0 then redis.call('HSET', keys.payloads, unpack(bodies)) end
  -- With the end of its leases, so that the entry of a process that vanished can be swept; and with what was late, of
  -- which the headers say nothing any more.
  redis.call('HSET', keys.claims, owner, request .. struct.pack('<d', lease_end) .. table.concat(late, ' '))
end

if #put_off > 0 then
  local waits, heads, till, is_new = {}, {}, now_ms + tonumber(ARGV[15]), false
  for i, job in ipairs(put_off) do
    waits[2 * i - 1], waits[2 * i] = till, job[1]
    -- One that came from the retries keeps its header, which may say that it was late.
    if job[7] then
      is_new = true
      heads[#heads + 1] = job[1]
      heads[#heads + 1] = struct.pack(HEADER, job[2], job[6] and job[3] + SPARED or job[3], job[4], NOBODY, NOBODY) .. job[5]
    end
  end
  redis.call('ZADD', keys.retries, unpack(waits))
  if is_new then
    redis.call('HSET', keys.headers, unpack(heads))
    -- Another process may have no suspect. Of what was among the retries all know when to look.
    publish(keys.channel, till)
  end
end
for _, job in ipairs(buried) do
  local token, key = job[1], job[5]
  release_unique(keys.unique, key, token)
  redis.call('HSET', keys.headers, token, struct.pack(HEADER, job[2], job[3], job[4], NOBODY, NOBODY))
  redis.call('HSET', keys.errors, token, cjson.encode({ kind = 'killed', at = now_ms,
    error = string.format('its worker died or lost the lease %d times while it ran', job[3]) }))
  redis.call('ZADD', keys.dead, now_ms, token)
  add_to(keys.counters, 'dead', 1)
end
for _, job in ipairs(moved) do
  -- Moved while it lay in the destination queue: its first attempt is still to come.
  redis.call('ZADD', keys.returned, job[2], job[1])
  redis.call('HSET', keys.headers, job[1], struct.pack(HEADER, 0, 0, job[2], NOBODY, NOBODY) .. job[3])
  redis.call('HSET', keys.payloads, job[1], job[4])
end
if #cancelled > 0 then
  local tokens = {}
  for i, job in ipairs(cancelled) do
    release_unique(keys.unique, job[2], job[1])
    tokens[i] = job[1]
  end
  remember(keys.ended, now_ms, 'cancelled', tokens)
  add_to(keys.counters, 'cancelled', #tokens)
end
if #vanished > 0 then add_to(keys.counters, 'vanished', #vanished) end
if doubles > 0 then add_to(keys.counters, 'doubles', doubles) end
if #retried + #put_off > 0 then firsts[keys.retries] = nil end
if #returned + #moved > 0 then firsts[keys.returned] = nil end
return finish()
