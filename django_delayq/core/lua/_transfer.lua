-- Prelude: move due frames to the destination queue, as Redisson's pushTask does, but whatever lies among them.
--
-- Needs _clock, _count, _window, _frame, _list, _job. find_due() reads, transfer_due() writes.

-- Lua unpacks some 8,000 values, a ZADD or HSET takes two for each job, and an error halfway is not undone.
local MOST = 2000

-- Of frames that are due at the same moment, any may go first. Redisson's random bytes scatter them over the delay
-- queue, where each would have to be searched for. So if there are more than a call takes, those at the list's head go
-- first.
-- Returns entries as find_due() does, with their indexes; or nil if there are not enough.
local function find_at_head(timeout_set, delay_queue, score, limit, budget)
  if redis.call('ZCOUNT', timeout_set, score, score) <= limit then return nil end
  local found, seen, from, size, byte_count = {}, {}, 0, 0, 0
  while #found < limit and from < 2 * limit and byte_count < budget do
    size = next_size(size, from, byte_count, budget)
    local part = redis.call('LRANGE', delay_queue, from, from + size - 1)
    if #part == 0 then break end
    for i, known in ipairs(redis.call('ZMSCORE', timeout_set, unpack(part))) do
      local frame = part[i]
      -- The next sweep will take it away, which moves all frames behind it.
      if frame == TOMBSTONE then return nil end
      byte_count = byte_count + #frame
      if known and tonumber(known) == tonumber(score) and not seen[frame] and #found < limit then
        seen[frame] = true
        found[#found + 1] = { frame, tonumber(score), from + i - 1 }
      end
    end
    from = from + #part
  end
  return 2 * #found >= limit and found or nil
end

-- Returns due frames, up to a number, a size, and a cost of taking foreign ones out of a long list.
local function find_due(timeout_set, delay_queue, now_ms, limit, budget)
  local found, size, byte_count, foreign = {}, 0, 0, 0
  local length = redis.call('LLEN', delay_queue)
  local due = limit
  while #found < due and byte_count < budget do
    size = math.min(next_size(size, #found, byte_count, budget), due - #found)
    local part = redis.call('ZRANGE', timeout_set, #found, #found + size - 1, 'WITHSCORES')
    if #found == 0 then
      if not part[1] or tonumber(part[2]) > now_ms then return found end
      if limit > 1 then due = math.min(limit, redis.call('ZCOUNT', timeout_set, '-inf', now_ms)) end
      if length > limit and is_foreign(part[1]) then
        local at_head = find_at_head(timeout_set, delay_queue, part[2], limit, budget)
        if at_head then return at_head end
      end
    end
    for i = 1, #part, 2 do
      byte_count = byte_count + #part[i]
      if is_foreign(part[i]) then
        foreign = foreign + 1
        if foreign > most_foreign(length, byte_count / (#found + 1)) then return found end
      end
      found[#found + 1] = { part[i], tonumber(part[i + 1]) }
    end
  end
  return found
end

-- A frame that nobody can unpack would stop a Redisson for ever. It goes into quarantine, whole, with the reason.
local function quarantine_frame(quarantine, payloads, errors, counters, now_ms, token, frame)
  redis.call('ZADD', quarantine, now_ms, token)
  redis.call('HSET', payloads, token, frame)
  redis.call('HSET', errors, token, cjson.encode({ kind = 'frame', at = now_ms,
    error = string.format('not a Redisson frame: %d bytes, neither dLc0 nor Bc0Lc0', #frame) }))
  add_to(counters, 'quarantined', 1)
end

-- Returns index by frame, for the frames whose index find_due() knows.
local function known_indexes(due)
  local indexes = {}
  for _, entry in ipairs(due) do indexes[entry[1]] = entry[3] end
  return indexes
end

local function plan_transfer(timeout_set, delay_queue, locators, counters, due, format)
  local plan = { frames = {}, payloads = {}, bad = {}, tokens = {} }
  for _, entry in ipairs(due) do
    local frame = entry[1]
    local payload, id = unpack_frame(frame, format)
    plan.frames[#plan.frames + 1] = frame
    if payload then
      plan.payloads[#plan.payloads + 1] = payload
      local token, mac = token_of(payload)
      -- A token of other bytes would reach clients that expect text, and one payload would stop them again and again.
      if token and not token:find('[^%w_-]') then plan.tokens[#plan.tokens + 1] = { token, entry[2], id, mac } end
    else
      plan.bad[#plan.bad + 1] = frame
    end
  end
  plan.listed = locate_listed(delay_queue, plan.frames, counters, known_indexes(due))
  plan.places = {}
  for _, item in ipairs(plan.tokens) do
    local locator = redis.call('HGET', locators, item[1])
    local place = read_locator(locator)
    -- Another frame is the job only if the job's own is gone: somebody took it out and put it in again. A payload that
    -- nobody has checked becomes no surer by coming twice.
    local is_its = place and place.mac == item[4] and place.id ~= UNSURE
      and (place.id == item[3] or not find_frame(timeout_set, place, item[1]))
    if is_its and is_score(item[2]) then
      place.start, place.format, place.id = item[2], 0, item[3]
      plan.places[#plan.places + 1] = item[1]
      plan.places[#plan.places + 1] = write_locator(place)
    elseif not locator and is_score(item[2]) then
      -- Perhaps a job that was taken out and put in again.
      plan.places[#plan.places + 1] = item[1]
      plan.places[#plan.places + 1] = write_locator({ start = item[2], format = 0, id = UNSURE, mac = item[4], tail = '' })
    end
  end
  return plan
end

local function transfer_due(plan, now_ms, seed)
  if #plan.frames == 0 then return end
  if #plan.bad > 0 then
    check_sets(keys.quarantine)
    check_hashes(keys.payloads, keys.errors)
  end
  redis.call('ZREM', keys.timeout_set, unpack(plan.frames))
  unlist(keys.delay_queue, keys.counters, plan.listed)
  if #plan.places > 0 then redis.call('HSET', keys.locators, unpack(plan.places)) end
  for i, frame in ipairs(plan.bad) do
    quarantine_frame(keys.quarantine, keys.payloads, keys.errors, keys.counters, now_ms,
      seed .. string.format('q%05d', i), frame)
  end
  if #plan.payloads > 0 then redis.call('RPUSH', keys.destination, unpack(plan.payloads)) end
end
