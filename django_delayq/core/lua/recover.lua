-- End the leases of a process that is known to be dead, without waiting for their end. They count as expired.
--
-- Prelude  clock, window, frame, job
-- Keys     leases, headers, claims, channel
-- Args     owner: 8 bytes that name the process
--          first: first rank to look at
--          batch: leases to look at
-- Reply    ended: leases ended
--          next_rank: the rank to go on with, or -1 at the end

local now_ms, owner = math.floor(read_clock() / 1000), args.owner
local from, batch = tonumber(args.first), tonumber(args.batch)

local tokens = redis.call('ZRANGE', keys.leases, from, from + batch - 1)
local ends, count = {}, 0
if #tokens > 0 then
  for i, header in ipairs(redis.call('HMGET', keys.headers, unpack(tokens))) do
    local job = read_job(header)
    if job and job.owner == owner then
      count = count + 1
      ends[2 * count - 1], ends[2 * count] = 0, tokens[i]
    end
  end
end
redis.call('HDEL', keys.claims, owner)
if count > 0 then
  redis.call('ZADD', keys.leases, 'XX', unpack(ends))
  publish(keys.channel, now_ms)
end
-- Ended leases move to the front of the set; the ranks behind this page stay as they are.
return { count, #tokens < batch and -1 or from + batch }
