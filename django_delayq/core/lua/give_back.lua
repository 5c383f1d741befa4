-- Return unused leases. That counts as nothing, unless a lease ended before the job began, for the second time in a
-- row: that is a kill, or else a job that takes too long to get to its start would be leased for ever. Foreign payloads
-- go back to the head of the destination queue, in order, where Java finds them. Our own jobs wait with us, in order,
-- and are due at once.
--
-- Prelude  clock, window, frame, job, held, limit, settle
-- Keys     leases, headers, retries, payloads, destination, channel, returned, ranked, control, slots?limits,
--          held?limits, held_tasks?limits, paces?limits, errors?limits
-- Where    slots to errors: only if the queue, or one of its jobs, has a limit
-- Args     jobs... (token, fence, how): three a job, in the order they were claimed: token; fencing token; sum of 1 for a foreign payload,
--            2 if a lease of it ended before it began, now or earlier, 4 if that is a kill, 8 if it had begun
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_ms = math.floor(read_clock() / 1000)

redis.call('LLEN', keys.destination)
local held, lost = ours()
if #held == 0 then return lost end
check_hashes(keys.payloads)
local bodies = {}
for i, job in ipairs(held) do
  -- A foreign payload with a history stays with us: in the list its attempts would be lost.
  if tonumber(args.jobs[job.at].how) % 8 == 1 and job.attempts + job.kills == 0 then
    bodies[i] = redis.call('HGET', keys.payloads, job.token) or nil
  end
end
check_sets(keys.retries, keys.returned)
local is_ranked, kept = has_ranks(), {}
if keys.slots then free_slots(held, now_ms) end
redis.call('ZREM', keys.leases, unpack(tokens_of(held)))
for i = #held, 1, -1 do
  local job = held[i]
  if bodies[i] then
    redis.call('HDEL', keys.headers, job.token)
    redis.call('HDEL', keys.payloads, job.token)
    redis.call('LPUSH', keys.destination, bodies[i])
  else
    local how = tonumber(args.jobs[job.at].how)
    local kills = how % 8 >= 4 and job.kills + 1 or job.kills
    -- The server orders members of one score by token: a fraction of a millisecond keeps the order of the claim.
    local start = job.start < now_ms and job.start + (i - 1) / 4096 or now_ms
    -- One that had begun waits from now on, before those that get its slot.
    if how >= 8 then start = in_turn(now_ms, i, #held) - 0.25 end
    local waiting = waiting_set(keys.retries, keys.returned, job.attempts, kills)
    redis.call('ZADD', waiting, start, job.token)
    kept[#kept + 1] = job
    redis.call('HSET', keys.headers, job.token,
      write_job({ attempts = job.attempts, kills = kills, start = job.start, owner = how % 8 >= 2 and LATE, tail = job.tail }))
  end
end
add_ranks(kept, is_ranked, function(job) return math.min(job.start, now_ms) end)
publish(keys.channel, now_ms)
return lost
