-- Part of claim: finish the reply, with the time of the next event.
--
-- Uses     now_us, now_ms, fields, held_till, asked, limit, count, service, paused_till, throttle
--          back, transferred, doubles, vanished, put_off, ends, known_limits
-- Fills    reply
-- Sets     told

-- The score of a set's first member. It is read once, and again after this script has written to the set.
local firsts = {}
local function head_of(set)
  if not firsts[set] then firsts[set] = tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or math.huge) end
  return firsts[set]
end

local function finish()
  -- A paused queue has no event but the end of its pause and the next transfer.
  local wait, frames = paused_till or math.huge, math.huge
  if args.mode == 'shared' or args.mode == 'direct' and not paused_till then
    frames = tonumber(redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2] or math.huge)
  end
  -- A caller without room learns only when the next transfer is due, not what waits for room.
  if asked > 0 and not paused_till then
    if args.mode == 'direct' then wait = frames end
    if args.mode ~= 'take' then wait = math.min(wait, head_of(keys.retries), head_of(keys.returned)) end
    local lease_end = tonumber(redis.call('ZRANGE', keys.leases, 0, 0, 'WITHSCORES')[2] or math.huge)
    if is_spared(service, lease_end) then lease_end = service.till end
    wait = math.min(wait, lease_end)
    if redis.call('LLEN', keys.destination) > 0 then wait = 0 end
    local held = held_till
    if throttle then
      if throttle.most then told = told + 4 end
      local free = 0
      if asked > limit and count >= limit then
        if throttle.most and count >= throttle.room then
          -- Whoever ends a lease says so, as long as this is set.
          redis.call('HDEL', keys.control, '')
          redis.call('HSET', keys.control, 'full', 1)
          free = lease_end
        end
        if throttle.interval then
          -- A look at a queue with a fast rate is for as many jobs as it admits in 10 ms.
          local looks = math.max(1, math.min(asked, throttle.slack / throttle.interval + 1, math.ceil(10000 / throttle.interval)))
          free = math.max(free, (throttle.pace + (looks - 1) * throttle.interval - throttle.slack) / 1000)
        end
        if free > wait then
          wait, told = free, told + 1
          held = -now_ms
        end
      end
    end
    if held ~= (tonumber(fields[7] or 0) or 0) then
      redis.call('HDEL', keys.control, '')
      redis.call('HSET', keys.control, 'held_till', decimal(held))
    end
  end
  if args.mode == 'shared' or asked == 0 or paused_till then wait = math.min(wait, frames) end
  local wait_us = wait < math.huge and math.max(0, math.ceil(wait * 1000 - now_us)) or -1
  reply[1], reply[2], reply[3], reply[4], reply[5], reply[6] = now_us, wait_us, transferred, doubles, #vanished, #put_off
  reply[8], reply[9], reply[10], reply[11] = fields[3], fields[4], told, back and back.dropped or 0
  reply[12], reply[13] = #ends > 0 and ends, #known_limits > 0 and known_limits
  return reply
end
