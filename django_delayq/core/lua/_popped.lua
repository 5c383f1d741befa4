-- Part of claim: take what others put or transferred into the destination queue.
--
-- Uses     now_ms, format, waiting, is_full, lease, is_copy, tell_of
-- Fills    seen, gone, cancelled, moved
-- Sets     popped, doubles, byte_count

-- A payload is a job's if the locator of that job has its MAC. Any other payload is leased under a token of this claim.
local function pop(payload)
  local token, mac = token_of(payload)
  local locator = token and redis.call('HGET', keys.locators, token)
  local place = read_locator(locator)
  local is_same, is_early, letter = place and mac == place.mac, false, 'l'
  local is_certain = is_same and (args.mode ~= 'direct' or place.format == 0)
  if is_same and place.id == UNSURE then
    is_certain, letter = false, 'f'
    gone[#gone + 1] = token
  end
  -- Somebody else has transferred its frame; or has repeated it, and its own frame still waits.
  local own = is_certain and place.format ~= 0 and find_frame(keys.timeout_set, place, token)
  if own then
    is_certain = unpack_frame(own, format) == payload
    is_early = is_certain and place.start > now_ms
  end
  -- A locator that cannot be read is useless, and goes as well.
  if (is_certain and not is_early) or (locator and not place) then gone[#gone + 1] = token end
  local is_used = is_certain and not is_early and (seen[token] or redis.call('HEXISTS', keys.headers, token) == 1)
  -- Somebody has put the beginning of its MAC before other bytes. A script cannot see which payload is the job.
  if is_used and not is_copy(token, payload) then is_certain = false end
  if is_early or is_certain and (is_used or how_ended(keys.ended, now_ms, token))
      or (not is_certain and token and is_copy(token, payload)) then
    doubles, byte_count = doubles + 1, byte_count + #payload
    return
  elseif not is_certain then
    lease({ token = args.seed .. letter .. string.format('%05d', popped), attempts = 0, kills = 0, start = now_ms, tail = '',
      payload = payload, is_new = true, flags = 1 })
    return
  end
  local job = { token = token, attempts = 0, kills = 0, start = place.start, tail = place.tail, payload = payload, is_new = true,
    flags = 0 }
  local note = redis.call('HGET', keys.notes, token)
  if not note then
    lease(job)
    return
  end
  seen[token], byte_count = payload, byte_count + #payload
  if note == 'cancel' then
    if job.tail ~= '' then tell_of(job.tail) end
    cancelled[#cancelled + 1] = job
  else
    job.start = tonumber(note)
    moved[#moved + 1] = job
  end
end

-- What is dropped, cancelled or moved fills no room, so MOST bounds this loop. It reads one payload at a time: anybody
-- may put elements there, and any number of huge ones may follow small ones.
while popped < math.min(waiting, MOST) and not is_full() do
  local payload = redis.call('LINDEX', keys.destination, popped)
  popped = popped + 1
  pop(payload)
end
