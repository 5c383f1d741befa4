-- Part of claim: write which jobs run within their limits, and which are held back.
--
-- Uses     now_us, now_ms, is_ranked, back
-- Fills    firsts

local step_ms = tonumber(args.priority_step_ms)
local limited = back.limited
if #back.freed > 0 then redis.call('ZREM', keys.slots, unpack(back.freed)) end
local held, names, waits, heads, bodies, reasons = {}, {}, {}, {}, {}, {}

local function keep(job, tail)
  job.tail, job.owner = tail, job.flags >= 2 and LATE or nil
  heads[#heads + 1] = job.token
  heads[#heads + 1] = write_job(job)
  if job.is_new then
    bodies[#bodies + 1] = job.token
    bodies[#bodies + 1] = job.payload
  end
end

for i, job in ipairs(back.held) do
  keep(job, job.tail)
  held[2 * i - 1], held[2 * i] = now_ms + FOR_EVER, job.token
  names[2 * i - 1], names[2 * i] = 0, held_member(job.name, job.start, job.tail, job.token)
  reasons[2 * i - 1], reasons[2 * i] = job.token, held_error(job.name, job.why, now_ms)
end
if #held > 0 then
  -- Whoever lets them go on has to know.
  if is_ranked and step_ms then
    redis.call('HSET', keys.control, 'priority_step', step_ms)
  elseif is_ranked then
    redis.call('HDEL', keys.control, 'priority_step')
  end
  redis.call('ZADD', keys.held, unpack(held))
  redis.call('ZADD', keys.held_tasks, unpack(names))
  redis.call('HSET', keys.errors, unpack(reasons))
end
for _, job in ipairs(back.waits) do
  keep(job, limited.with_paid(job.tail, true))
  local set = waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
  redis.call('ZADD', set, job.due, job.token)
  firsts[set] = nil
  waits[#waits + 1] = job
end
if #heads > 0 then redis.call('HSET', keys.headers, unpack(heads)) end
if #bodies > 0 then redis.call('HSET', keys.payloads, unpack(bodies)) end
if #back.paces > 0 then limited.keep_paces(back.paces, now_us) end
if #back.slots > 0 then redis.call('ZADD', keys.slots, unpack(back.slots)) end
if #waits > 0 then
  add_ranks(waits, is_ranked, function(job) return job.due end)
  -- If this process dies, others know when to look.
  publish(keys.channel, waits[1].due)
end
if redis.call('ZCARD', keys.held) > 0 then
  for _, its in ipairs(back.limits) do
    -- A start that a rate has waited for gives the next moment to the next job.
    local most = its.freed + (its.interval and its.admitted or 0)
    if most > 0 and limited.let_go(its.limit, most, now_ms) > 0 then
      firsts[keys.retries], firsts[keys.returned] = nil, nil
    end
  end
end
