-- Part of claim: take up jobs that were with us before: expired leases, due retries, returned jobs.
--
-- Uses     now_ms, is_ranked, limit, service, count, is_full, lease, head_of, behind, tell_of
-- Fills    seen, expired, retried, returned, put_off, vanished, vanished_tails, buried, killed, left
-- Sets     suspects, byte_count

local safe_kills, max_kills = tonumber(args.safe_kills), tonumber(args.max_kills)
-- How many jobs one call puts off: suspects, and jobs that have to wait for the end of another.
local PUT_OFF = 500

-- Somebody may have deleted a key of ours. Without its header, a job begins anew; without its payload it cannot run, so
-- all that is left of it goes. due: its score; lease_end: the same for a job that was leased, else nil.
local function take_up(token, due, lease_end)
  local job = job_of(token) or { token = token, attempts = 0, kills = 0, start = now_ms, tail = '' }
  local tail, holder, claimed, was_spared = job.tail, job.owner, job.claimed, job.is_spared
  -- Nobody has it any more.
  job.fence, job.owner, job.claimed = nil, nil, nil
  if tail ~= '' then tell_of(tail) end
  local had_limit = lease_end and tail ~= '' and limit_of(tail)
  if had_limit then
    left[#left + 1] = { token, had_limit }
  end
  job.is_spared = was_spared or lease_end and is_spared(service, lease_end)
  -- A job is spared only once: otherwise one that takes its whole machine down each time would run for ever.
  if lease_end and (was_spared or not job.is_spared) then
    job.kills = job.kills + 1
    if claimed then killed[#killed + 1] = { token, claimed, holder } end
  end
  local is_over = max_kills >= 0 and job.kills > max_kills
  local is_suspect = not is_over and safe_kills >= 0 and job.kills > safe_kills
  if is_suspect and suspects == 0 then
    -- It fills no room, and its payload is not read. As it is not leased, it counts no kill if the caller dies.
    job.was_leased = lease_end ~= nil
    put_off[#put_off + 1] = job
    return
  end
  local payload = redis.call('HGET', keys.payloads, token)
  if not payload then
    vanished[#vanished + 1] = token
    if #killed > 0 and killed[#killed][1] == token then killed[#killed] = nil end
    vanished_tails[#vanished] = tail
  elseif is_over and not (args.mode ~= 'take' and has_on_dead(tail)) then
    -- It fills no room, but its payload was read, which counts towards the budget.
    byte_count = byte_count + #payload
    buried[#buried + 1] = job
    seen[token] = payload
  else
    if is_suspect then suspects = suspects - 1 end
    job.payload, job.due = payload, due
    job.flags = (token_of(payload) ~= token and 1 or 0) + (holder == LATE and 2 or 0)
    lease(job)
  end
end

-- Returned jobs of one read, by their start times. A score says since when a job can run, and that is later for one that
-- had begun or was held. found: tokens and scores in turn; so is what it returns.
local function by_start(found)
  if #found <= 2 then return found end
  local tokens, jobs, ordered = {}, {}, {}
  for i = 1, #found, 2 do tokens[#tokens + 1] = found[i] end
  for i, header in ipairs(redis.call('HMGET', keys.headers, unpack(tokens))) do
    local job = read_job(header)
    jobs[i] = { start = job and job.start or now_ms, place = i }
  end
  table.sort(jobs, function(a, b)
    if a.start ~= b.start then return a.start < b.start end
    return a.place < b.place
  end)
  for i, job in ipairs(jobs) do
    ordered[2 * i - 1], ordered[2 * i] = found[2 * job.place - 1], found[2 * job.place]
  end
  return ordered
end

-- Jobs that are put off must not hide the jobs behind them, so this reads on.
local function take_up_due(set, till, taken, is_lease)
  local before
  while not is_full() and #put_off + #behind < PUT_OFF and #put_off + #behind ~= before do
    before = #put_off + #behind
    local found = redis.call('ZRANGEBYSCORE', set, '-inf', till, 'WITHSCORES', 'LIMIT', #taken, limit - count)
    if set == keys.returned then found = by_start(found) end
    for i = 1, #found, 2 do
      if is_full() or #put_off + #behind == PUT_OFF then break end
      taken[#taken + 1] = found[i]
      local score = tonumber(found[i + 1])
      -- The lease of a process that is known to be dead ends at 0.
      take_up(found[i], score > 0 and score or now_ms, is_lease and score or nil)
    end
  end
end

take_up_due(keys.leases, over_by(service, now_ms), expired, true)
if args.mode ~= 'take' and not is_ranked then
  if head_of(keys.retries) <= now_ms then take_up_due(keys.retries, now_ms, retried) end
  if head_of(keys.returned) <= now_ms then take_up_due(keys.returned, now_ms, returned) end
end
