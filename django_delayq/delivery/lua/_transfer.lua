-- Prelude: due frames to the destination queue, as Redisson's pushTask, but whatever lies among them.
--
-- Needs _clock, _frame, _list, _job. find_due() reads, transfer_due() writes.

-- Lua unpacks some 8,000 values, a ZADD or HSET takes two for each job, and an error halfway is not undone.
local MOST = 2000

-- Due frames up to a number, a size, and what it costs to take foreign ones out of a long list. Read in growing
-- chunks, so that huge ones are not all copied to Lua.
local function find_due(timeout_set, delay_queue, now_ms, limit, budget)
  local found, from, size, byte_count, foreign = {}, 0, 8, 0, 0
  local length = redis.call('LLEN', delay_queue)
  while #found < limit and byte_count < budget do
    size = math.min(size, limit - #found)
    local part = redis.call('ZRANGEBYSCORE', timeout_set, '-inf', now_ms, 'WITHSCORES', 'LIMIT', from, size)
    for i = 1, #part, 2 do
      byte_count = byte_count + #part[i]
      if not listed_number(part[i]) and not unlisted_number(part[i]) then
        foreign = foreign + 1
        if foreign > most_foreign(length, byte_count / (#found + 1)) then return found end
      end
      found[#found + 1] = { part[i], tonumber(part[i + 1]) }
    end
    if #part < 2 * size then break end
    from, size = from + size, size * 2
  end
  return found
end

-- A frame that nobody can unpack would stop a Redisson for ever. It goes aside, whole, with the reason.
local function quarantine_frame(quarantine, payloads, errors, counters, now_ms, token, frame)
  redis.call('ZADD', quarantine, now_ms, token)
  redis.call('HSET', payloads, token, frame)
  redis.call('HSET', errors, token, cjson.encode({ kind = 'frame', at = now_ms,
    error = string.format('not a Redisson frame: %d bytes, neither dLc0 nor Bc0Lc0', #frame) }))
  redis.call('HINCRBY', counters, 'quarantined', 1)
end

local function plan_transfer(delay_queue, locators, counters, due)
  local plan = { frames = {}, payloads = {}, bad = {}, tokens = {} }
  for _, entry in ipairs(due) do
    local frame = entry[1]
    local payload, id = unpack_frame(frame)
    plan.frames[#plan.frames + 1] = frame
    if payload then
      plan.payloads[#plan.payloads + 1] = payload
      local token = token_of(payload)
      if token then plan.tokens[#plan.tokens + 1] = { token, entry[2], id } end
    else
      plan.bad[#plan.bad + 1] = frame
    end
  end
  plan.listed = locate_listed(delay_queue, plan.frames, counters)
  plan.places = {}
  for _, item in ipairs(plan.tokens) do
    local locator = redis.call('HGET', locators, item[1])
    if locator then
      local _, _, _, key = read_locator(locator)
      plan.places[#plan.places + 1] = item[1]
      plan.places[#plan.places + 1] = struct.pack(LOCATOR, item[2], 0, item[3]) .. key
    end
  end
  return plan
end

local function transfer_due(keys, plan, now_ms, seed)
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
