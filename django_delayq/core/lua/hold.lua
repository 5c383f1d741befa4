-- Hold jobs whose task or key the caller does not know, for a worker that does; and jobs of a paused task. The time
-- counts from when the job was first held for a limited time, by whichever worker. If a job was signed with another key
-- since the caller read it, or the pause has ended, it is not held for that, but due again. So is a job that is to be
-- held for a limit: its slot is free, it has that limit from now on, and the next claim decides. What waits for a key, or
-- for anything else but a pause without a limit of time, gives its unique key up: nobody knows whether it ever runs.
--
-- Prelude  clock, window, frame, job, unique, settle, held, pause, limit
-- Keys     leases, headers, held, held_tasks, errors, payloads, retries, returned, control, channel, ranked,
--          unique, slots?limits, paces?limits
-- Where    slots, paces: only if the queue, or one of its jobs, has a limit
-- Args     jobs... (token, fence, reason, why, hold_ms): token; fencing token; what it is held for, see _held.lua; why, for people; for how
--            long (ms), empty: as long as it takes
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local now_ms = math.floor(read_clock() / 1000)

local jobs, lost = ours()
if #jobs == 0 then return lost end
local before = redis.call('HMGET', keys.errors, unpack(tokens_of(jobs)))
check_sets(keys.held, keys.held_tasks, keys.retries, keys.returned)
local is_ranked, waits = has_ranks(), {}
local is_due, is_any_due, given, gives_up, paused = {}, false, {}, {}, nil
for _, job in ipairs(jobs) do
  local reason = args.jobs[job.at].reason
  local key, task, limit = named('key', reason), named('paused', reason), limit_named(reason)
  local found = key and key_of(redis.call('HGET', keys.payloads, job.token))
  if task then paused = paused or read_paused_tasks(redis.call('HGET', keys.control, 'paused_tasks'), now_ms) end
  given[job.token] = limit
  is_due[job.token] = found and found ~= key or task and not paused[task] or limit
  is_any_due = is_any_due or is_due[job.token]
  gives_up[job.token] = args.jobs[job.at].hold_ms == '' and not task and not is_due[job.token]
end
check_hashes(keys.unique)
if keys.slots then free_slots(jobs, now_ms) end
redis.call('ZREM', keys.leases, unpack(tokens_of(jobs)))
for i, job in ipairs(jobs) do
  local reason, hold_ms, since_ms = args.jobs[job.at].reason, tonumber(args.jobs[job.at].hold_ms), held_since(before[i])
  if given[job.token] then job.tail = with_limit(job.tail, given[job.token]) end
  if gives_up[job.token] then job.tail = give_up_unique(keys.unique, job.tail, job.token) end
  if hold_ms then since_ms = since_ms or now_ms end
  redis.call('HSET', keys.headers, job.token,
    write_job({ attempts = job.attempts, kills = job.kills, start = job.start, tail = job.tail }))
  if is_due[job.token] then
    local waiting = waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
    redis.call('ZADD', waiting, math.min(job.start, now_ms), job.token)
    waits[#waits + 1] = job
  else
    redis.call('ZADD', keys.held, hold_ms and since_ms + hold_ms or now_ms + FOR_EVER, job.token)
    redis.call('ZADD', keys.held_tasks, 0, held_member(reason, job.start, job.tail, job.token))
    redis.call('HSET', keys.errors, job.token, held_error(reason, args.jobs[job.at].why, now_ms, since_ms))
  end
end
add_ranks(waits, is_ranked, function(job) return math.min(job.start, now_ms) end)
if is_any_due then publish(keys.channel, now_ms) end
return lost
