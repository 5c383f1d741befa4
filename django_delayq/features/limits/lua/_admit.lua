-- Part of claim: decide which of the jobs to lease their own limits admit.
--
-- Uses     now_us, left
-- Fills    cancelled
-- Sets     leased, count, back

local limited, slots, held, waits, freed, limits, paces = of_limits(), {}, {}, {}, {}, {}, {}
back = { limited = limited, slots = slots, held = held, waits = waits, freed = freed, limits = limits, paces = paces, dropped = 0 }
limited.check()
local admitted, known = {}, {}

local function look_up(limit)
  local its = known[limit]
  if not its then
    its = limited.read(limit)
    its.limit, its.count, its.freed, its.admitted = limit, limited.count_slots(limit), 0, 0
    if its.interval then its.pace = limited.arrival(redis.call('ZSCORE', keys.paces, limit), its, now_us) end
    known[limit] = its
    limits[#limits + 1] = its
  end
  return its
end

-- Leases that were over had slots, unless somebody took the job from the destination queue.
for _, item in ipairs(left) do
  local its, member = look_up(item[2]), item[2] .. '\0' .. item[1]
  if redis.call('ZSCORE', keys.slots, member) then
    freed[#freed + 1] = member
    its.count, its.freed = its.count - 1, its.freed + 1
  end
end

for _, job in ipairs(leased) do
  -- Who takes from the destination queue is no worker, and has no slots.
  local limit, flags
  if args.mode ~= 'take' and job.tail ~= '' then limit, flags = limit_of(job.tail) end
  if not limit then
    admitted[#admitted + 1] = job
  else
    local its, why, moment = look_up(limit), nil, nil
    if limited.is_given(flags) then
      job.is_given, job.tail = true, limited.with_given(job.tail, false)
    end
    local drops, is_paid = flags % 2 == 1 and flags % 8 < 4 and job.is_new, limited.is_paid(flags)
    if is_paid and not limited.is_in_time(job, its, now_us) then
      is_paid, job.tail = false, limited.with_paid(job.tail, false)
    end
    local most = its.most or (flags % 2 == 1 and not its.is_known and 1)
    if most and its.count >= most and drops and not its.is_looked_through then
      -- Nothing is held for such a limit, so nobody else would ever free a slot whose lease was deleted.
      its.is_looked_through = true
      for _, member in ipairs(limited.stale_slots(limit)) do
        freed[#freed + 1] = member
        its.count, its.freed = its.count - 1, its.freed + 1
      end
    end
    if most and its.count >= most then
      why = string.format('%.0f of %.0f', its.count, most)
    elseif its.interval and not is_paid then
      moment = its.pace - its.slack
      if moment > now_us and (drops or moment > now_us + its.interval) then
        why = its.rate
      else
        its.pace, its.is_used = its.pace + its.interval, true
      end
    end
    if why then
      job.name = limited.held_under(limit)
      job.why = string.format('limit %s: %s', limit:gsub('%z$', ''):gsub('%z', ' '), why)
    end
    if why and drops then
      cancelled[#cancelled + 1] = job
      back.dropped = back.dropped + 1
    elseif why then
      if is_paid then job.tail = limited.with_paid(job.tail, false) end
      held[#held + 1] = job
    elseif moment and moment > now_us then
      job.due = math.ceil(moment / 1000)
      waits[#waits + 1] = job
    else
      admitted[#admitted + 1] = job
      its.count, its.admitted = its.count + 1, its.admitted + 1
      slots[#slots + 1] = 0
      slots[#slots + 1] = limit .. '\0' .. job.token
      if is_paid then job.tail = limited.with_paid(job.tail, false) end
    end
  end
end
leased, count = admitted, #admitted
for _, its in ipairs(limits) do
  if its.is_used then
    paces[#paces + 1] = string.format('%.2f', its.pace)
    paces[#paces + 1] = its.limit
  end
end
