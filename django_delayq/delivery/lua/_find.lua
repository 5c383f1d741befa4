-- Prelude: where a job is, for scripts that show, move or cancel it by its id.
--
-- Needs _clock, _window, _frame, _list, _job. An element that somebody else offered has no token; while it waits, its
-- name is 'f' format '-' start time '-' 16 hex digits, the 8 bytes of its frame.

local function locator_of(locators, token)
  local format, start, hex = token:match('^f([12])%-(%d+)%-(%x+)$')
  if not format or #hex ~= 16 then return redis.call('HGET', locators, token) end
  local id = hex:gsub('%x%x', function(pair) return string.char(tonumber(pair, 16)) end)
  return pack_locator(tonumber(start), tonumber(format), id, NO_MAC), true
end

-- Returns a table with .state, and what belongs to that state:
--   running, retrying, held, dead, quarantined: .score, and .header, a fresh one if it is missing or unreadable
--   scheduled, due: .locator and .frame; or .locator and .payload, if the job lies in the destination queue; or
--     .header, if it was returned before its first attempt
--   unknown: .locator; the job is somewhere in a long destination queue, or Java took it
--   missing, or how the job ended: .locator, if a stale one is left
-- .waits is the set of ours in which the job waits: retries, returned or held. It is missing while the job moves to another
-- server.
-- find_lying: called in place of find_in_destination().
local function find_job(token, now_ms, find_lying)
  local places = { { 'running', keys.leases }, { 'retrying', keys.retries, true }, { 'returned', keys.returned, true },
    { 'held', keys.held, true }, { 'dead', keys.dead }, { 'quarantined', keys.quarantine } }
  local header = redis.call('HGET', keys.headers, token)
  for _, place in ipairs(places) do
    local score = redis.call('ZSCORE', place[2], token)
    if score then
      local state = place[1]
      score = tonumber(score)
      if state == 'returned' then state = score <= now_ms and 'due' or 'scheduled' end
      -- Leave a job alone while it moves to another server: until then it is held for 'moving', see reason_of in _held.lua.
      local is_moving = state == 'held' and (redis.call('HGET', keys.errors, token) or ''):find('"reason":"6:moving', 1, true)
      if not read_header(header) then header = struct.pack(HEADER, 0, 0, is_score(score) and score or 0, NOBODY, NOBODY) end
      return { state = state, header = header, score = score, waits = place[3] and not is_moving and place[2] }
    end
  end
  local locator, is_foreign = locator_of(keys.locators, token)
  local start, format, id, _, mac = read_locator(locator)
  if start then
    -- A foreign frame cannot be told from another with the same 8 bytes.
    local frame = find_frame(keys.timeout_set, start, format, id, not is_foreign and token or nil, mac)
    if frame then
      return { state = start <= now_ms and 'due' or 'scheduled', locator = locator, frame = frame, score = start }
    end
    -- Without its frame a foreign element is like any other: no search would find it, and no note would reach it.
    if not is_foreign then
      local payload, complete = (find_lying or find_in_destination)(keys.destination, token, locator)
      if payload then return { state = 'due', locator = locator, payload = payload, score = start } end
      if not complete then return { state = 'unknown', locator = locator, score = start } end
    end
  end
  return { state = how_ended(keys.ended, now_ms, token) or 'missing', locator = locator }
end

-- Whether nobody runs a leased job: then its lease was given up, and ends at 0. A lease that merely ran out does not
-- say so: while the server was away, or the worker was cut off, nobody could renew it.
local function is_given_up(job)
  return job.state == 'running' and job.score == 0
end

-- Forgets the locator and the unique key of a job whose frame Java has taken.
local function forget(token, locator)
  local _, _, _, tail = read_locator(locator)
  release_unique(keys.unique, tail, token)
  redis.call('HDEL', keys.locators, token)
end

-- What inspect.lua returns of a job that find_job() has found.
local function look_at(token, job, now_ms)
  local attempts, kills, start, tail, payload, _, owner, claimed = 0, 0, job.score or 0, '', job.payload or '', nil, NOBODY, nil
  if job.header then
    attempts, kills, start, _, owner, tail, _, claimed = read_header(job.header)
  elseif read_locator(job.locator) then
    start, _, _, tail = read_locator(job.locator)
  end
  if job.frame then
    payload = unpack_frame(job.frame) or job.frame
  elseif not job.payload then
    payload = redis.call('HGET', keys.payloads, token) or ''
  end
  return { job.state, job.score or 0, attempts, kills, start, payload, redis.call('HGET', keys.errors, token) or '',
    unique_of(tail):sub(2), now_ms, priority_of(tail),
    claimed or 0, redis.call('HGET', keys.errors, HISTORY .. token) or '', job.state == 'running' and owner or '' }
end
