-- Say how many shards a queue has, and how many of them keep keys; the first to say so fixes the latter.
--
-- Keys     control, unique, slots, paces, schedules, locators, headers
-- Args     shards: how many shards may hold jobs; 0: only ask
--          with_keys: how many shards keep unique keys, limits and schedules; 0: what has the bare name, whose keys these are
-- Reply    most: the most shards that the queue ever had
--          with_keys: how many keep keys, -1 while nobody has said so

local fields = redis.call('HMGET', keys.control, 'shards', 'key_shards')
local most, pinned = tonumber(fields[1] or 0) or 0, tonumber(fields[2] or nil)
local shards = tonumber(args.shards)
if shards == 0 then return { most, pinned or -1 } end

-- What a queue without shards has stored by keys stays where it is, and so has all of these keys.
local kept = redis.call('HLEN', keys.unique) + redis.call('HLEN', keys.schedules)
  + redis.call('ZCARD', keys.slots) + redis.call('ZCARD', keys.paces)
if not pinned and redis.call('HLEN', keys.locators) + redis.call('HLEN', keys.headers) > 0 then
  -- Of what waits or runs, some may have a limit, if tasks have any.
  local said = redis.call('HGETALL', keys.control)
  for i = 1, #said, 2 do
    if string.sub(said[i], 1, 6) == 'limit:' then kept = kept + 1 end
  end
end
if shards > most then
  most = shards
  redis.call('HSET', keys.control, 'shards', most)
end
if not pinned then
  pinned = kept > 0 and 0 or tonumber(args.with_keys)
  redis.call('HSET', keys.control, 'key_shards', pinned)
end
return { most, pinned }
