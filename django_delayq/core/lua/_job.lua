-- Prelude: what we keep of a job beside Redisson's keys. docs/internals.md, "Our keys".
--
-- Needs _window, _frame. A locator (hash field by token, while the job waits) is, big-endian,
--   8 bytes of the MAC | u8 16 + 4 * frame format (0: moved to the destination queue) + what the frame's 8 bytes are |
--   u48 number of the frame | u48 start time | tail
-- or, for what does not fit that, and as an earlier version wrote all locators, little-endian,
--   f64 start time | u8 frame format | 8 bytes of the frame | 8 bytes of the MAC in hex, 16 | tail
-- and a header (hash field by token, from the first claim on)
--   u32 attempts | u32 kills (+ 2^31 once one was spared) | f64 start time | 8 bytes fencing token | 8 bytes owner |
--   while the job is leased: 'c' | u48 big-endian, when it was claimed | tail
-- little-endian. Owner LATE: the job was given back, as its lease ended before it began.
--
-- A tail is what the job keeps from locator to header and back: its unique key, or nothing. A unique key starts with
-- 'e', held to the job's end, or with 's', held to its start; with 'E', the job has given it up for as long as nobody can
-- run it. Extras may stand before it:
--   'x' | u8 flags | u8 100 + priority | u16 big-endian, bytes of the limit | limit | with flag 64, three u48 big-endian:
--   when the first call of its unique key was scheduled, for how long after its start time it may begin (ms), each 0 if that
--   is not noted, and from when the latter counts, if that is later than its start time | with flag 128, the token of the job
--   that it waits behind | with flag 16, the token of the callback of its batch
-- The limit is its name, '\0', and a key or nothing. The flags are the sum of 1, DROPS: while its limit is full, a new
-- job is cancelled and not held; 2, PAID: the job waits for a moment that the rate of its limit has given to it; 4, with
-- DROPS: it is held all the same; 8, GIVEN: a worker has just given the limit to it; and 32: others follow the job once it
-- is a dead letter.

local HEADER = '<I4I4dc8c8'
local LOCATOR = '>I4I4BI6I6'
-- What stands before the payload in a frame of format 2, then a locator.
local FRAME_AND_LOCATOR = '<Bc2>I6<L>I4I4BI6I6'
local WIDE_LOCATOR = '<dBc8c16'
-- The year 10,889: no start time that a locator holds is later.
local FARTHEST = 281474976710656
-- Added to the kills of a job whose lease ended in a gap: that was not counted as a kill.
local SPARED = 2147483648
-- In the place of the 8 bytes: a payload in the destination queue came in a frame, and says that it is this job. Only
-- somebody with a key can tell whether it is.
local UNSURE = ('\255'):rep(8)
local NO_MAC = ('\0'):rep(16)
local NOBODY = '\0\0\0\0\0\0\0\0'
local LATE = '\0\0\0\0\0\0\0\1'

-- JSON that we have written, as a table; empty if it is none.
local function decode_table(text)
  local is_json, body = pcall(cjson.decode, text or '')
  return is_json and type(body) == 'table' and body or {}
end

-- Whether a number can be printed as a score: it is not a NaN, and lies where a double counts exactly.
local function is_score(number)
  return number > -9007199254740992 and number < 9007199254740992
end

-- read_job() and read_locator() return nil for bytes that no script of ours has written: what cannot be read is missing,
-- which is no error.

-- Only for what acknowledges many jobs: a table for each would cost it 2 of 100 instructions.
local function unpack_header(header)
  if not header or #header < 32 then return nil end
  local attempts, kills, start, fence, owner = struct.unpack(HEADER, header)
  if not is_score(start) then return nil end
  if header:byte(33) == 99 and #header >= 39 then
    return attempts, kills % SPARED, start, fence, owner, header:sub(40), kills >= SPARED, (struct.unpack('>I6', header, 34))
  end
  return attempts, kills % SPARED, start, fence, owner, header:sub(33), kills >= SPARED
end

-- What a header says of a job, as a table: .attempts, .kills, .start, .fence, .owner and .tail; .is_spared, if one of its
-- kills was spared; .claimed, while it is leased. Its .token is what the caller passes.
local function read_job(header, token)
  local attempts, kills, start, fence, owner, tail, was_spared, claimed = unpack_header(header)
  return start and { token = token, attempts = attempts, kills = kills, start = start, fence = fence, owner = owner,
    tail = tail, is_spared = was_spared, claimed = claimed }
end

local function job_of(token)
  return read_job(redis.call('HGET', keys.headers, token), token)
end

-- The headers of jobs that one claim leases: a function of a job and its tail.
local function leased_headers(fence, owner, now_ms)
  local stamp = struct.pack('>c1I6', 'c', now_ms)
  return function(job, tail)
    local kills = job.is_spared and job.kills + SPARED or job.kills
    return struct.pack(HEADER, job.attempts, kills, job.start, fence, owner) .. stamp .. tail
  end
end

-- The header of such a table. Who has no attempts or kills has 0, and who has no fence or owner is nobody's.
local function write_job(job)
  if job.claimed then return leased_headers(job.fence, job.owner, job.claimed)(job, job.tail) end
  local kills = (job.kills or 0) + (job.is_spared and SPARED or 0)
  return struct.pack(HEADER, job.attempts or 0, kills, job.start, job.fence or NOBODY, job.owner or NOBODY) .. job.tail
end

-- Where the unique key begins in a tail.
local function unique_at(tail)
  if tail:byte(1) ~= 120 or #tail < 5 then return 1 end
  local flags, at = tail:byte(2), 6 + (struct.unpack('>I2', tail, 4))
  if flags < 16 then return at end
  return at + (flags % 128 >= 64 and 18 or 0) + (flags >= 128 and 22 or 0) + (flags % 32 >= 16 and 22 or 0)
end

-- The batch of a tail, nil if it has none.
local function batch_of(tail)
  if tail:byte(1) ~= 120 or #tail < 5 or tail:byte(2) % 32 < 16 then return nil end
  local at = unique_at(tail)
  return tail:sub(at - 22, at - 1)
end

-- A tail with another batch, or with none. Without extras it is the unique key alone.
local function with_batch(tail, batch)
  local at, flags, middle = unique_at(tail), 0, 'd\0\0'
  if at > 1 then
    flags, middle = tail:byte(2), tail:sub(3, at - 1)
    if flags % 32 >= 16 then flags, middle = flags - 16, middle:sub(1, -23) end
  end
  if batch then flags, middle = flags + 16, middle .. batch end
  if flags == 0 and middle == 'd\0\0' then return tail:sub(at) end
  return 'x' .. string.char(flags) .. middle .. tail:sub(at)
end

-- The unique key of a tail, with its letter, or ''.
local function unique_of(tail)
  local at = unique_at(tail)
  if tail:byte(at) == 69 then return '' end
  return at == 1 and tail or tail:sub(at)
end

-- The tail of a job that wants the unique key back that it has given up.
local function with_unique(tail)
  local at = unique_at(tail)
  return tail:byte(at) == 69 and tail:sub(1, at - 1) .. 'e' .. tail:sub(at + 1) or tail
end

-- Whether others follow the job of a tail once it is a dead letter: a worker has to bury it, as only that can sign them.
local function has_on_dead(tail)
  return tail:byte(1) == 120 and #tail >= 5 and math.floor(tail:byte(2) / 32) % 2 == 1
end

-- When the first call of the unique key in a tail was scheduled; which job it waits behind; for how long after its start
-- time it may begin, ms, and from when that counts at the earliest. Nil for what is not noted.
local function run_of(tail)
  if tail:byte(1) ~= 120 or #tail < 5 or tail:byte(2) < 64 then return nil end
  local flags, at, first, ahead, longest, since = tail:byte(2), 6 + (struct.unpack('>I2', tail, 4)), nil, nil, nil, nil
  if flags % 128 >= 64 then
    if #tail < at + 17 then return nil end
    first, longest, since, at = struct.unpack('>I6I6I6', tail, at)
  end
  if flags >= 128 then ahead = tail:sub(at, at + 21) end
  return first ~= 0 and first or nil, ahead, longest ~= 0 and longest or nil, since
end

-- A tail that says this instead of the first two. Without extras it is the unique key alone.
local function with_run(tail, first, ahead)
  local at, flags, middle, times = unique_at(tail), 0, 'd\0\0', ''
  local batch, _, _, longest, since = batch_of(tail) or '', run_of(tail)
  if at > 1 then flags, middle = tail:byte(2) % 64, tail:sub(3, 5 + (struct.unpack('>I2', tail, 4))) end
  if first or longest then flags, times = flags + 64, struct.pack('>I6I6I6', first or 0, longest or 0, since or 0) end
  if ahead then flags = flags + 128 end
  if flags == 0 and middle == 'd\0\0' then return tail:sub(at) end
  return 'x' .. string.char(flags) .. middle .. times .. (ahead or '') .. batch .. tail:sub(at)
end

-- What is left of a tail once its unique key is free.
local function without_unique(tail)
  local extras = tail:sub(1, unique_at(tail) - 1)
  if #extras >= 5 and extras:byte(2) >= 64 then return with_run(extras) end
  return extras
end

-- A tail with another priority. Without extras it is the unique key alone.
local function with_priority(tail, priority)
  local at = unique_at(tail)
  local flags, limit = '\0', '\0\0'
  if at > 1 then flags, limit = tail:sub(2, 2), tail:sub(4, at - 1) end
  if priority == 0 and flags == '\0' and limit == '\0\0' then return tail:sub(at) end
  return 'x' .. flags .. string.char(100 + priority) .. limit .. tail:sub(at)
end

local function priority_of(tail)
  if tail:byte(1) ~= 120 or #tail < 5 then return 0 end
  return math.min(tail:byte(3) - 100, 100)
end

-- The limit of a tail, nil if it has none; and its flags.
local function limit_of(tail)
  if tail:byte(1) ~= 120 or #tail < 6 then return nil end
  local bytes = struct.unpack('>I2', tail, 4)
  if bytes == 0 then return nil end
  return tail:sub(6, 5 + bytes), tail:byte(2)
end

-- The locator of a table: .start, .format, .id (the frame's 8 bytes), .mac and .tail. What the 8 bytes are: 0 NOBODY,
-- 1 UNLISTED and a number, 2 LISTED and a number, 3 UNSURE.
local function write_locator(place)
  local start, format, id, mac = place.start, place.format, place.id, place.mac
  local mark, of, number = id:sub(1, 2), nil, 0
  if mark == UNLISTED or mark == LISTED then
    of, number = mark == LISTED and 2 or 1, struct.unpack('>I6', id, 3)
  else
    of = id == UNSURE and 3 or id == NOBODY and 0
  end
  local fits = of and start >= 0 and start < FARTHEST and start % 1 == 0 and not mac:find('[^0-9a-f]')
  if not fits then return struct.pack(WIDE_LOCATOR, start, format, id, mac) .. place.tail end
  local high, low = tonumber(mac:sub(1, 8), 16), tonumber(mac:sub(9), 16)
  return struct.pack(LOCATOR, high, low, 16 + 4 * format + of, number, start) .. place.tail
end

-- The frame of a payload of ours, in which the MAC stands where we write it, and its locator without a tail; nil if they
-- have another form. One pack makes both: each costs the server as much as a command.
local function pack_new(format, listed, number, start, payload)
  local high, low = tonumber(payload:sub(48, 55), 16), tonumber(payload:sub(56, 63), 16)
  if not (high and low and start < FARTHEST) then return nil end
  local kind = (format == '1' and 20 or 24) + (listed and 2 or 1)
  local both = struct.pack(FRAME_AND_LOCATOR, 8, listed and LISTED or UNLISTED, number, #payload, high, low, kind, number,
    start)
  return both:sub(format == '1' and 2 or 1, 17) .. payload, both:sub(18)
end

-- Only for claims of many jobs, as unpack_header() is.
local function unpack_locator(locator)
  if not locator or #locator < 21 then return nil end
  local high, low, kind, _, start = struct.unpack(LOCATOR, locator)
  if kind >= 16 and kind < 28 then
    local of, id = kind % 4, NOBODY
    if of == 3 then
      id = UNSURE
    elseif of > 0 then
      id = (of == 2 and LISTED or UNLISTED) .. locator:sub(10, 15)
    end
    return start, math.floor(kind / 4) - 4, id, locator:sub(22), string.format('%08x%08x', high, low)
  end
  if #locator < 33 then return nil end
  local format, id, mac
  start, format, id, mac = struct.unpack(WIDE_LOCATOR, locator)
  if format > 2 or not is_score(start) then return nil end
  return start, format, id, locator:sub(34), mac
end

-- What a locator says, as the table that write_locator() takes.
local function read_locator(locator)
  local start, format, id, tail, mac = unpack_locator(locator)
  return start and { start = start, format = format, id = id, tail = tail, mac = mac }
end

local function place_of(token)
  return read_locator(redis.call('HGET', keys.locators, token))
end

-- A key of the wrong type stops a script, and what it has written by then is not undone. So before its first write it
-- checks the keys that it writes and did not read.
local function check_hashes(...)
  for _, key in ipairs({ ... }) do redis.call('HLEN', key) end
end

local function check_sets(...)
  for _, key in ipairs({ ... }) do redis.call('ZCARD', key) end
end

-- Nobody has checked the payload: the name of the task is what the payload says, if that is plain text.
local function task_in(payload)
  return (payload and payload:sub(1, 700):match('"body":"{\\"task\\":\\"([%w_.:/ -]+)\\"') or ''):sub(1, 200)
end

-- The token of a payload of ours, whichever codec wrapped it, and the part of its MAC that locators keep; nil for a
-- foreign payload. Anybody can write a token: the payload is that job's only if the job's locator has the same MAC. And
-- nothing runs before its whole signature is checked, which a script cannot do.
local function token_of(payload)
  local at = 12
  if payload:sub(1, 11) ~= '{"delayq":"' then
    local _, last = payload:sub(1, 80):find('"delayq":"', 1, true)
    if not last then return nil end
    at = last + 1
  end
  if payload:sub(at + 22, at + 30) ~= '","mac":"' or payload:byte(at + 68) ~= 34 then return nil end
  return payload:sub(at, at + 21), payload:sub(at + 36, at + 51)
end

-- Notes that a payload, put into the destination queue from a frame, says that it is a job. A token of other bytes than
-- ours would reach clients that expect text.
local function leave_unsure(locators, token, mac, start)
  if token:find('[^%w_-]') or redis.call('HEXISTS', locators, token) == 1 then return end
  redis.call('HSET', locators, token, write_locator({ start = start, format = 0, id = UNSURE, mac = mac, tail = '' }))
end

-- Whether a payload is that of the job in a place.
local function is_located(place, token, payload)
  local found, mac = token_of(payload)
  return found == token and place ~= nil and mac == place.mac
end

-- The token of a payload if it is really that job's, and does not only say so; then what its locator says.
-- id: the 8 bytes of its frame, if it has one.
local function located_token(payload, id)
  local token, mac = token_of(payload)
  if not token then return nil end
  local place = place_of(token)
  if not place or mac ~= place.mac or id and id ~= place.id then return nil end
  return token, place
end

-- The name of an element that somebody else offered, while it waits; _find.lua reads it.
local function foreign_name(format, score, id)
  local hex = id:gsub('.', function(byte) return string.format('%02x', byte:byte()) end)
  return string.format('f%d-%.0f-%s', format, tonumber(score), hex)
end

-- Several frames may have one number: after counters were deleted, or because somebody copied it. So many are looked
-- at.
local MOST_TWINS = 16

-- Of each start time met so far: the ranks of its members; and of our frames among them, by their first bytes, the rank
-- and number of the first and the last that a search has met.
local known_ranks = {}

local function ranks_at(timeout_set, score)
  local low = redis.call('ZCOUNT', timeout_set, '-inf', '(' .. score)
  known_ranks[score] = { low = low, high = low + redis.call('ZCOUNT', timeout_set, score, score), met = {} }
  return known_ranks[score]
end

-- Our frames of one start time lie in the order of their numbers, most of them without gaps, so an interpolation search
-- finds one in a step or two. Returns the first frame met that begins with `head`.
local function find_numbered(timeout_set, score, head)
  local kind, number = head:sub(1, -7), struct.unpack('>I6', head, #head - 5)
  local is_known = known_ranks[score] ~= nil
  local run = known_ranks[score] or ranks_at(timeout_set, score)
  local met = run.met[kind] or {}
  run.met[kind] = met
  -- The frame lies from rank `low` on and before `high`. The numbers are those of the frames beside these bounds.
  local low, high, low_number, high_number = run.low, run.high, nil, nil
  local function look_at(rank)
    local frame = redis.call('ZRANGE', timeout_set, rank, rank)[1] or ''
    if frame:sub(1, #head) == head then return frame end
    local found
    if #frame > #head and frame:sub(1, #kind) == kind then
      found = struct.unpack('>I6', frame, #kind + 1)
      if not met.first or found < met.first then met.first_at, met.first = rank, found end
      if not met.last or found > met.last then met.last_at, met.last = rank, found end
    end
    if is_below(frame, head) then
      low, low_number = rank + 1, found
    else
      high, high_number = rank, found
    end
  end
  if met.first and met.first <= number then low, low_number = met.first_at, met.first - 1 end
  if met.last and met.last >= number then high, high_number = met.last_at + 1, met.last + 1 end
  local step = 0
  while low < high do
    step = step + 1
    local at = math.floor((low + high) / 2)
    if step % 3 > 0 and low_number and high_number then
      at = low + math.floor((number - low_number - 1) * (high - low) / math.max(1, high_number - low_number - 1))
    elseif step % 3 > 0 and low_number then
      at = low + number - low_number - 1
    elseif step % 3 > 0 and high_number then
      at = high - high_number + number
    end
    local frame = look_at(math.max(low, math.min(at, high - 1)))
    if frame then return frame end
  end
  if not is_known then return nil end
  -- A script that has written since has moved the ranks.
  known_ranks[score] = nil
  return find_numbered(timeout_set, score, head)
end

-- The frame that a locator names, or nil: Java took it. O(log N), however many share its start time. With the job's
-- token, the search passes over frames of other jobs with these 8 bytes.
local function find_frame(timeout_set, place, token)
  local format, id, mac = place.format, place.id, place.mac
  if format == 0 then return nil end
  local head = format == 2 and '\8' .. id or id
  local function is_it(frame)
    if not token then return true end
    local found, known = token_of(frame:sub(#head + 9))
    if not found then return mac == NO_MAC end
    return found == token and known == mac
  end
  local score = string.format('%.0f', place.start)
  local frame = not known_ranks[score] and redis.call('ZRANGEBYSCORE', timeout_set, score, score, 'LIMIT', 0, 1)[1]
  if frame and frame:sub(1, #head) == head and is_it(frame) then return frame end
  if not frame and not known_ranks[score] then return nil end
  local mark = id:sub(1, 2)
  if token and (mark == LISTED or mark == UNLISTED) then
    frame = find_numbered(timeout_set, score, head)
    if not frame or is_it(frame) then return frame end
  end
  local first, stop = rank_from(timeout_set, score, head)
  for rank = first, math.min(first + MOST_TWINS, stop) - 1 do
    frame = redis.call('ZRANGE', timeout_set, rank, rank)[1]
    if frame:sub(1, #head) ~= head then return nil end
    if is_it(frame) then return frame end
  end
  return nil
end

local SEARCHED = 1000
local SEARCHED_BYTES = 1048576

-- Looks at the payloads in the destination queue, one after the other, until `is_found` says so; 1,000 elements or 1 MB
-- from its head at most. Returns whether it looked at all of them.
local function look_through(destination, is_found)
  local from, size, byte_count, length = 0, 0, 0, redis.call('LLEN', destination)
  while from < math.min(length, SEARCHED) and byte_count < SEARCHED_BYTES do
    size = math.min(next_size(size, from, byte_count, SEARCHED_BYTES), SEARCHED - from)
    for _, payload in ipairs(redis.call('LRANGE', destination, from, from + size - 1)) do
      if is_found(payload) then return false end
      byte_count = byte_count + #payload
    end
    from = from + size
  end
  return from >= length
end

-- Looks for one job of ours in the destination queue. Returns its payload; or nil, and whether it looked at everything.
local function find_in_destination(destination, token, place)
  local found
  local complete = look_through(destination, function(payload)
    found = is_located(place, token, payload) and payload or nil
    return found
  end)
  return found, complete
end

-- For a script that looks for many jobs: the tokens and MACs of all payloads looked at, and whether that was
-- everything.
local function tokens_lying(destination)
  local lying = {}
  local complete = look_through(destination, function(payload)
    local token, mac = token_of(payload)
    if token then lying[token .. mac] = true end
  end)
  return lying, complete
end

-- The attempts that a job has behind it: in the hash of errors, in the field HISTORY and its token. One
-- JSON object a line, the last first.
local HISTORY = 'history:'
-- Of a longer history, the oldest attempts go.
local HISTORY_BYTES = 32768

local function add_attempt(errors, token, text)
  local before = redis.call('HGET', errors, HISTORY .. token)
  local all = before and text .. '\n' .. before or text
  while #all > HISTORY_BYTES do
    local last = all:match('^.*()\n')
    if not last then break end
    all = all:sub(1, last - 1)
  end
  redis.call('HSET', errors, HISTORY .. token, all)
end

local function forget_errors(errors, tokens)
  local fields = {}
  for i, token in ipairs(tokens) do fields[2 * i - 1], fields[2 * i] = token, HISTORY .. token end
  redis.call('HDEL', errors, unpack(fields))
end

-- Priorities. On a queue that has had a job with a priority other than 0, control says so in the field 'ranked', and the
-- set `ranked` has each job that waits, outside the destination queue, scored so that the highest priority comes first,
-- and of one priority the first due. What waited before is not ranked, and counts as priority 0. A member whose job no
-- longer waits is harmless: a claim drops it.
local LEVEL = 4398046511104

local function rank_of(priority, start)
  return string.format('%.0f', (100 - priority) * LEVEL + math.max(0, math.min(math.floor(start), LEVEL - 1)))
end

-- To be called before the first write: in a closed part of a queue with shards, `ranked` is no set, see pin_shards.lua. Also
-- returns what control says of shards.
local function has_ranks()
  local pin = redis.call('HGET', keys.control, 'shards')
  return redis.call('ZCARD', keys.ranked) > 0, pin
end

-- jobs: each with .token and .tail. start_of: returns the moment of a job of the list by which it comes before others of
-- its priority: when it is due; of one that is due again, its start time, so that it keeps its place. Its score, by which
-- its lateness counts, may be later.
local function add_ranks(jobs, is_ranked, start_of)
  local members = {}
  for _, job in ipairs(jobs) do
    local priority = priority_of(job.tail or '')
    if is_ranked or priority ~= 0 then
      members[#members + 1] = rank_of(priority, start_of(job))
      members[#members + 1] = job.token
    end
  end
  if #members == 0 then return end
  redis.call('HSET', keys.control, 'ranked', 1)
  redis.call('ZADD', keys.ranked, unpack(members))
end

-- The set in which a job of ours waits outside the timeout set: among the retries once an attempt has failed or a lease
-- has expired, else among the returned, whose first attempt is still to come. Only this function decides that.
local function waiting_set(retries, returned, attempts, kills)
  return attempts + kills > 0 and retries or returned
end

-- The score of a job among `count` that are due at one time. The server orders members of one score by token: a fraction of
-- a millisecond keeps their own order.
local function in_turn(due, i, count)
  return due - (count - i) / 4096
end

-- Until when a pause or a limit of the queue has held back what was due, epoch ms, as the field 'held_till' of control says;
-- negative there: a claim found that a limit still did.
local function held_until(field, now_ms)
  local till = tonumber(field or 0) or 0
  -- The clock was set back.
  if till > now_ms then return 0 end
  return till < 0 and now_ms or till
end

-- The clocks of two servers, one of which takes over from the other, differ by less. What was noted further ahead than
-- this was noted by a clock that has been set back since.
local SKEW_MS = 60000

-- How a job ended stays known for a while, so that scripts notice if it is scheduled or delivered again.
local ENDED_MS = 30000
local OUTCOMES = { succeeded = 1, cancelled = 2, discarded = 3, expired = 4, taken = 5 }
local ENDED_STATES = { 'succeeded', 'cancelled', 'discarded', 'expired', 'taken' }

local function count_forgotten(ended, now_ms)
  return redis.call('ZCOUNT', ended, '-inf', string.format('%.0f', (now_ms - ENDED_MS) * 8))
end

-- old: how many may be forgotten, if the caller has counted them.
local function remember(ended, now_ms, outcome, tokens, old)
  if #tokens == 0 then return end
  local members, score = {}, string.format('%.0f', now_ms * 8 + OUTCOMES[outcome])
  for _, token in ipairs(tokens) do
    members[#members + 1] = score
    members[#members + 1] = token
  end
  redis.call('ZADD', ended, unpack(members))
  old = old or count_forgotten(ended, now_ms)
  if old > 0 then redis.call('ZREMRANGEBYRANK', ended, 0, math.min(old, 2 * #tokens + 16) - 1) end
end

-- The state in which a job ended; nil as soon as the time is over, even if remember() has not deleted it yet. The token of
-- a moment of a schedule comes again after the clock was set back.
local function how_ended(ended, now_ms, token)
  local score = redis.call('ZSCORE', ended, token)
  if not score then return nil end
  score = tonumber(score)
  local ended_ms = math.floor(score / 8)
  if ended_ms < now_ms - ENDED_MS or ended_ms > now_ms + SKEW_MS then return nil end
  return ENDED_STATES[score % 8]
end

-- How many elements are noted as done under this request: some, if the call is a repeat whose first reply was lost.
local function noted(ended, request, most)
  local count = 0
  while count < most and redis.call('ZSCORE', ended, request .. '-' .. (count + 1)) do count = count + 1 end
  return count
end
