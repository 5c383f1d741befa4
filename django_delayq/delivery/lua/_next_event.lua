-- Part of claim: finish the reply, with the time of the next event.
--
-- Uses     now_us, limit, mode, service, paused_till, pauses, transferred, doubles, vanished, put_off
-- Fills    reply

-- The score of a set's first member. It is read once, and again after this script has written to the set.
local firsts = {}
local function head_of(set)
  if not firsts[set] then firsts[set] = tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or math.huge) end
  return firsts[set]
end

local function finish()
  -- A paused queue has no event but the end of its pause and the next transfer.
  local wait = paused_till or math.huge
  if mode == 'shared' or mode == 'direct' and not paused_till then
    local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
    if head then wait = math.min(wait, tonumber(head)) end
  end
  -- A caller without room learns only when the next transfer is due, not what waits for room.
  if limit > 0 then
    if mode ~= 'take' then
      wait = math.min(wait, head_of(keys.retries), head_of(keys.returned))
    end
    local head = redis.call('ZRANGE', keys.leases, 0, 0, 'WITHSCORES')[2]
    if head then
      local lease_end = tonumber(head)
      if is_spared(service, lease_end) then lease_end = service.till end
      wait = math.min(wait, lease_end)
    end
    if redis.call('LLEN', keys.destination) > 0 then wait = 0 end
  end
  if wait < math.huge then reply[2] = math.max(0, wait * 1000 - now_us) end
  reply[3], reply[4], reply[5], reply[6] = transferred, doubles, #vanished, #put_off
  if pauses then reply[#reply + 1] = pauses end
  return reply
end
