-- Read how the last jobs ended.
--
-- Keys     last_ended
-- Args     first: how many of the newest to leave out
--          count: how many to read
-- Reply    total: how many the queue remembers
--          stored...: records, the newest first

local first, count = tonumber(args.first), tonumber(args.count)
local found = redis.call('LRANGE', keys.last_ended, -first - count, -first - 1)
local stored = {}
for i = #found, 1, -1 do stored[#stored + 1] = found[i] end
return { redis.call('LLEN', keys.last_ended), stored }
