-- Confirm that elements were taken: only now are they gone. Safe to repeat: a lost reply is given again.
--
-- Prelude  clock, count, window, frame, job, unique
-- Keys     leases, headers, payloads, errors, unique, ended, counters, claims
-- Args     owner: 8 bytes: who claimed them
--          jobs... (token, fence): token; fencing token
-- Returns  one character an element: '1' if it is the caller's, by this call or an earlier one; '0' if it is not; '?'
--          if it is gone for too long to tell

local now_ms, owner = math.floor(read_clock() / 1000), args.owner

-- The fencing token alone decides, and no time: the lease may be over and nobody else have come, and the clock may have
-- been set back since.
local tokens, tails, noted, flags = {}, {}, {}, {}
for i = args.jobs, #ARGV, #args.jobs do
  local token, flag = args.jobs[i].token, '0'
  local receipt = token .. args.jobs[i].fence
  local header = redis.call('HGET', keys.headers, token)
  local job = read_job(header)
  if job and job.fence == args.jobs[i].fence then
    flag = '1'
    tokens[#tokens + 1] = token
    tails[#tails + 1] = job.tail
    noted[#noted + 1] = token
    noted[#noted + 1] = receipt
  elseif redis.call('ZSCORE', keys.ended, receipt) then
    flag = '1'
  elseif not header and not redis.call('ZSCORE', keys.ended, token) then
    flag = '?'
  end
  flags[#flags + 1] = flag
end

redis.call('HDEL', keys.claims, owner)
if #tokens > 0 then
  redis.call('ZREM', keys.leases, unpack(tokens))
  redis.call('HDEL', keys.headers, unpack(tokens))
  redis.call('HDEL', keys.payloads, unpack(tokens))
  forget_errors(keys.errors, tokens)
  for i, token in ipairs(tokens) do release_unique(keys.unique, tails[i], token) end
  remember(keys.ended, now_ms, 'taken', noted)
  add_to(keys.counters, 'taken', #tokens)
end
return table.concat(flags)
