-- Part of claim: put suspects that were not leased among the retries, each with its counts as they were.
--
-- Uses     now_ms, is_ranked, put_off

local put_off_ms = tonumber(args.put_off_ms)
local waits, heads, till = {}, {}, now_ms + put_off_ms
for i, job in ipairs(put_off) do
  waits[2 * i - 1], waits[2 * i] = till, job.token
  -- A suspect that came from the retries keeps its header, which may say that it was late.
  if job.was_leased then
    heads[#heads + 1] = job.token
    heads[#heads + 1] = write_job(job)
  end
end
redis.call('ZADD', keys.retries, unpack(waits))
add_ranks(put_off, is_ranked, function() return till end)
if #heads > 0 then
  redis.call('HSET', keys.headers, unpack(heads))
  -- Another process may be free for a suspect. For those that were among the retries, all know when to look.
  publish(keys.channel, till)
end
