-- Note how far jobs are whose leases are the caller's; forget it of those whose attempts have ended.
--
-- Prelude  clock, window, frame, job
-- Keys     leases, headers, progress
-- Args     jobs... (token, fence, text): token; fencing token; how far it is, empty: the attempt has ended
-- Returns  nil

local now_ms = decimal(math.floor(read_clock() / 1000))
redis.call('ZCARD', keys.leases)
redis.call('HLEN', keys.progress)
local values, over = {}, {}
for i = args.jobs, #ARGV, #args.jobs do
  local token, text = args.jobs[i].token, args.jobs[i].text
  local job = job_of(token)
  local fence = job and job.fence
  local is_leased = fence and redis.call('ZSCORE', keys.leases, token)
  if text ~= '' then
    if is_leased and fence == args.jobs[i].fence then
      values[#values + 1] = token
      values[#values + 1] = now_ms .. ' ' .. text
    end
  elseif not is_leased or fence == args.jobs[i].fence then
    over[#over + 1] = token
  end
end
-- First a command that a full server does not refuse.
if #over > 0 then redis.call('HDEL', keys.progress, unpack(over)) end
if #values > 0 then redis.call('HSET', keys.progress, unpack(values)) end
return nil
