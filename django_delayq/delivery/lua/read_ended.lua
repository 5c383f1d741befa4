-- Read how the last jobs ended.
--
-- Keys     last_ended
-- Args     first: how many of the newest to leave out
--          count: how many to read
-- Returns  how many the queue remembers; then records, the newest first

local first, count = tonumber(args.first), tonumber(args.count)
local found = redis.call('LRANGE', keys.last_ended, -first - count, -first - 1)
local reply = { redis.call('LLEN', keys.last_ended) }
for i = #found, 1, -1 do reply[#reply + 1] = found[i] end
return reply
