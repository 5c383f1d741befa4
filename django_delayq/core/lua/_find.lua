-- Prelude: where a job is, for scripts that show, move or cancel it by its id.
--
-- Needs _clock, _window, _frame, _list, _job, _unique. An element that somebody else offered has no token; while it waits, its
-- name is 'f' format '-' start time '-' 16 hex digits, the 8 bytes of its frame.

local function locator_of(locators, token)
  local format, start, hex = token:match('^f([12])%-(%d+)%-(%x+)$')
  if not format or #hex ~= 16 then return redis.call('HGET', locators, token) end
  local id = hex:gsub('%x%x', function(pair) return string.char(tonumber(pair, 16)) end)
  return write_locator({ start = tonumber(start), format = tonumber(format), id = id, mac = NO_MAC, tail = '' }), true
end

-- Returns a table with .state, and what belongs to that state:
--   running, retrying, held, dead, quarantined: .score, and the fields of read_job(); as for a new job if its header cannot be read
--   scheduled, due: .locator, what read_locator() says, and .frame, or .payload, if the job lies in the destination queue;
--     or as above, if it was returned before its first attempt
--   unknown: .locator, and what that says; the job is somewhere in a long destination queue, or Java took it
--   missing, or how the job ended: .locator, if a stale one is left, and what that says if it can be read
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
      local job = read_job(header, token)
        or { token = token, attempts = 0, kills = 0, start = is_score(score) and score or 0, owner = NOBODY, tail = '' }
      job.state, job.score, job.waits = state, score, place[3] and not is_moving and place[2]
      return job
    end
  end
  local locator, is_foreign = locator_of(keys.locators, token)
  local job = read_locator(locator)
  if job then
    local complete = true
    -- A foreign frame cannot be told from another with the same 8 bytes.
    job.frame = find_frame(keys.timeout_set, job, not is_foreign and token or nil)
    -- Without its frame a foreign element is like any other: no search would find it, and no note would reach it.
    if not job.frame and not is_foreign then
      job.payload, complete = (find_lying or find_in_destination)(keys.destination, token, job)
    end
    if job.frame or job.payload then
      job.state = (job.payload or job.start <= now_ms) and 'due' or 'scheduled'
    elseif not complete then
      job.state = 'unknown'
    end
    if job.state then job.score = job.start end
  end
  job = job or {}
  job.locator, job.state = locator, job.state or how_ended(keys.ended, now_ms, token) or 'missing'
  return job
end

-- Whether nobody runs a leased job: then its lease was given up, and ends at 0. A lease that merely ran out does not
-- say so: while the server was away, or the worker was cut off, nobody could renew it.
local function is_given_up(job)
  return job.state == 'running' and job.score == 0
end

-- Forgets the locator and the unique key of a job whose frame Java has taken.
local function forget(token, place)
  release_unique(keys.unique, place and place.tail, token)
  redis.call('HDEL', keys.locators, token)
end

-- What inspect.lua returns of a job that find_job() has found.
local function look_at(token, job, now_ms)
  local payload, tail = job.payload or '', job.tail or ''
  if job.frame then
    payload = unpack_frame(job.frame) or job.frame
  elseif not job.payload then
    payload = redis.call('HGET', keys.payloads, token) or ''
  end
  return { job.state, job.score or 0, job.attempts or 0, job.kills or 0, job.start or 0, payload, redis.call('HGET', keys.errors, token) or '',
    unique_of(tail):sub(2), now_ms, priority_of(tail),
    job.claimed or 0, redis.call('HGET', keys.errors, HISTORY .. token) or '', job.state == 'running' and job.owner or '' }
end
