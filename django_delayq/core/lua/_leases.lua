-- Part of claim: collect the jobs to lease, and hand them out.
--
-- Uses     now_ms, limit, budget, reserved, turn, held_till
-- Fills    reply, leased, behind, seen, known_limits
-- Sets     count, byte_count, told

local function is_full()
  return count + reserved >= limit or byte_count >= budget
end

-- A job waits behind another that held its unique key and ran already, until that one has ended and no longer holds the
-- key. Nothing tells when, so it is looked at again and again: after an eighth of the time by which it is late
-- already, 2 s at most while the other runs, and 30 s while the other waits for its next attempt. Jobs of many keys are
-- looked at together, 20 times a second, so that their number makes no more calls.
local function must_wait(job)
  local _, ahead = run_of(job.tail)
  if not ahead then return false end
  local other = job_of(ahead)
  if not other or unique_of(other.tail):sub(2) ~= unique_of(job.tail):sub(2) then return false end
  local most_ms = other.fence == NOBODY and 30000 or 2000
  local again = now_ms + math.max(50, math.min(math.floor((now_ms - job.start) / 8), most_ms))
  job.again = again - again % 50
  byte_count, seen[job.token] = byte_count + #job.payload, job.payload
  behind[#behind + 1] = job
  return true
end

-- Notes if a job has a limit, or is in a batch: then whoever ends its lease needs more keys.
local function tell_of(tail)
  if limit_of(tail) or batch_of(tail) then told = 2 end
end

-- job: .turn, its place in the reply on a queue with priorities; .token, .attempts, .kills, .start, .tail, .payload; .is_new if no hash of ours has its payload yet; .is_spared if
-- the end of a lease counted no kill; .due, when the place or the lease ended in which it waited, if not its start time;
-- .flags as in the reply: 0, or the sum of 1 and 2.
local function lease(job)
  if job.tail ~= '' and args.mode ~= 'take' and must_wait(job) then return end
  count, byte_count = count + 1, byte_count + #job.payload
  leased[count] = job
  job.turn = job.turn or turn
  seen[job.token] = job.payload
  if job.tail ~= '' then tell_of(job.tail) end
end

-- Whether a payload that says that it is a certain job equals, to the last byte, the payload that we already have of
-- it.
local function is_copy(token, payload)
  return seen[token] == payload
    or (redis.call('HEXISTS', keys.headers, token) == 1 and redis.call('HGET', keys.payloads, token) == payload)
end

-- Adds the six elements of a job to the reply.
local function hand_out(job)
  local n, payload, flags = #reply, job.payload, job.flags
  if flags % 2 == 1 then
    local own = token_of(payload)
    local ended = own and how_ended(keys.ended, now_ms, own)
    -- An element that was taken out may be put in again.
    if ended and ended ~= 'taken' then flags = flags + 4 end
  end
  local its_limit = job.tail ~= '' and limit_of(job.tail)
  if its_limit then
    flags = flags + 8
    known_limits[#known_limits + 1] = job.is_given and '' or its_limit
  end
  local due = math.max(job.due or job.start, held_till)
  if due > job.start then flags = flags + 16 * math.floor(due - job.start + 0.5) end
  reply[n + 1], reply[n + 2], reply[n + 3] = job.token, job.attempts, job.kills
  reply[n + 4], reply[n + 5], reply[n + 6] = job.start, payload, flags
end
