-- Prelude: frames of ours that wait on, and go into the delay queue or leave it: their mark says which.
--
-- Needs _frame, _job. Redisson looks at neither mark nor number, so the frame stays the same for it.

-- The same frame with another mark and number.
local function marked(frame, listed, number)
  local payload, _, format = unpack_frame(frame)
  return payload and pack_frame(tostring(format), listed, number, payload)
end

-- Let the locator of a job follow its own frame: adds two elements to `places`. A copy of the job changes nothing.
local function follow_frame(locators, places, old, new)
  local payload, id, format = unpack_frame(old)
  local token, mac = token_of(payload)
  local place = token and read_locator(redis.call('HGET', locators, token))
  if not place or place.format ~= format or place.id ~= id or place.mac ~= mac then return end
  local _, new_id = unpack_frame(new)
  place.id = new_id
  places[#places + 1] = token
  places[#places + 1] = write_locator(place)
end

-- Only one run at a time fills or empties a list: two would put the same frame in twice. Field 'listing' of the control
-- hash: the run, until when it holds the list (epoch ms), the number of its last step, and the two numbers of its
-- reply.
local LISTING_MS = 30000

-- Returns the reply if there is nothing to do: another run holds the list; or the step was done before, and its reply
-- was lost. Only the first step of a run may take a list: what a later step relies on was found out before another run
-- had it.
local function earlier_step(control, run, step, now_ms)
  local pattern = '^(%S+) (%d+) (%d+) (%d+) (%d+)$'
  local holder, till, done, seen, count = (redis.call('HGET', control, 'listing') or ''):match(pattern)
  if holder == run then
    if tonumber(done) == step then return { 'ok', tonumber(seen), tonumber(count) } end
    return nil
  end
  -- More time than that is left only if the clock was set back.
  local left = holder and tonumber(till) - now_ms or 0
  if step > 1 or (left > 0 and left <= LISTING_MS) then return { 'busy', 0, 0 } end
end

local function end_step(control, run, step, now_ms, seen, count)
  redis.call('HSET', control, 'listing', string.format('%s %.0f %d %d %d', run, now_ms + LISTING_MS, step, seen, count))
  return { 'ok', seen, count }
end
