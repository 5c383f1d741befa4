-- Part of claim: collect the jobs to lease, and hand them out.
--
-- Uses     now_ms, limit, budget, reserved, turn
-- Fills    reply, leased, seen
-- Sets     count, byte_count

local function is_full()
  return count + reserved >= limit or byte_count >= budget
end

-- job: .turn, its place in the reply on a queue with priorities; .token, .attempts, .kills, .start, .tail, .payload; .is_new if no hash of ours has its payload yet; .is_spared if
-- the end of a lease counted no kill; .flags as in the reply: 0, or the sum of 1 and 2.
local function lease(job)
  count, byte_count = count + 1, byte_count + #job.payload
  leased[count] = job
  job.turn = job.turn or turn
  seen[job.token] = job.payload
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
  reply[n + 1], reply[n + 2], reply[n + 3] = job.token, job.attempts, job.kills
  reply[n + 4], reply[n + 5], reply[n + 6] = job.start, payload, flags
end
