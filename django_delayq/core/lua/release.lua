-- Let held jobs of tasks that the caller knows run, and those of a task whose pause has ended; put jobs that were held
-- for too long into quarantine. For a worker nothing is published: it claims next, and a worker that does not know the
-- tasks would only hold them again.
--
-- Prelude  clock, count, window, frame, job, unique, held, pause, batch, ended
-- Keys     held, held_tasks, headers, errors, retries, returned, quarantine, unique, counters, control, channel, ranked,
--          batches, payloads, last_ended?
-- Where    last_ended: only if the queue remembers the jobs that ended last
-- Args     limit: most jobs to release, and most to put into quarantine
--          is_worker: 1: the caller is a worker, which names all tasks that it knows: also put jobs that were held for too long
--            into quarantine, and release all that a pause held which has ended
--          name_limit: most names of tasks to look at
--          cursor: where to go on among the names, as the last call returned it; empty: at the first
--          reasons...: what the caller knows of the tasks and keys that jobs are held for, see _held.lua
-- Reply    released: jobs that go on
--          quarantined: jobs that were held for too long
--          cursor: where to go on among the names, empty at their end
--          ends...: four for each that went into quarantine: token, 'quarantined', the task that its payload names, or empty, and why

local now_ms, limit = math.floor(read_clock() / 1000), math.min(tonumber(args.limit), 500)
local is_worker, names_left, cursor = args.is_worker == '1', tonumber(args.name_limit), args.cursor
local known = {}
for i = args.reasons, #ARGV do known[args.reasons[i]] = true end

local paused
local function may_run(reason)
  local task = named('paused', reason)
  if not task or not is_worker and not known[reason] then return known[reason] end
  paused = paused or read_paused_tasks(redis.call('HGET', keys.control, 'paused_tasks'), now_ms)
  return not paused[task]
end

local tokens, members, seen, freed, over = {}, {}, {}, {}, {}

local function take(token, name, why, goes_on)
  if seen[token] then return end
  seen[token] = true
  tokens[#tokens + 1] = token
  local job = job_of(token)
  if job then members[#members + 1] = held_member(name, job.start, job.tail, token) end
  job = job or { token = token, attempts = 0, kills = 0, start = now_ms, tail = '' }
  job.why = why
  local list = goes_on and freed or over
  list[#list + 1] = job
end

if is_worker then
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', keys.held, '-inf', now_ms, 'LIMIT', 0, limit)) do
    local name, why = read_held(redis.call('HGET', keys.errors, token))
    take(token, name, why, may_run(name))
  end
end

while names_left > 0 and #freed < limit do
  local member = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. cursor, '+', 'LIMIT', 0, 1)[1]
  if not member then
    cursor = ''
    break
  end
  local name, _, kind = split_member(member)
  if not name then
    -- No script of ours has written it.
    members[#members + 1] = member
    cursor = member .. '\0'
  elseif kind == 'limit' or kind == 'batch' then
    -- loosen.lua lets these go on, and the last job of the batch. Behind all digits, with which a length begins.
    cursor = reason_of(kind) .. ':'
  elseif may_run(name) then
    local room = limit - #freed
    local page = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. cursor, '(' .. name .. '\1', 'LIMIT', 0, room)
    for _, found in ipairs(page) do
      local _, token = split_member(found)
      members[#members + 1] = found
      if token and redis.call('ZSCORE', keys.held, token) then take(token, name, '', true) end
    end
    cursor = #page < room and name .. '\1' or page[#page] .. '\0'
  else
    cursor = name .. '\1'
  end
  names_left = names_left - 1
end
if #tokens + #members == 0 then return { 0, 0, cursor, {} } end

check_sets(keys.retries, keys.returned, keys.quarantine)
check_hashes(keys.unique, keys.counters, keys.errors)
if #over > 0 then check_batches() end
local is_ranked = has_ranks()
local records, ends = {}, {}
if #over > 0 then check_hashes(keys.payloads) end
if #members > 0 then redis.call('ZREM', keys.held_tasks, unpack(members)) end
if #tokens > 0 then redis.call('ZREM', keys.held, unpack(tokens)) end
for i, job in ipairs(freed) do job.place = i end
table.sort(freed, function(a, b)
  if a.start ~= b.start then return a.start < b.start end
  return a.place < b.place
end)
for i, job in ipairs(freed) do
  local waiting = waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
  redis.call('ZADD', waiting, in_turn(now_ms, i, #freed), job.token)
  local tail = regain_unique(keys.unique, job.tail, job.token)
  if tail ~= job.tail then
    job.tail = tail
    redis.call('HSET', keys.headers, job.token, write_job(job))
  end
end
add_ranks(freed, is_ranked, function(job) return math.min(job.start, now_ms) end)
for _, job in ipairs(over) do
  release_unique(keys.unique, job.tail, job.token)
  redis.call('HSET', keys.headers, job.token,
    write_job({ attempts = job.attempts, kills = job.kills, start = job.start, tail = with_batch(without_unique(job.tail)) }))
  local why = string.gsub(job.why, '%.?$', '.', 1) .. ' It was held, and no worker that can run it came in time.'
  redis.call('HSET', keys.errors, job.token, cjson.encode({ kind = 'task', at = now_ms, error = why }))
  local payload = redis.call('HGET', keys.payloads, job.token)
  if keys.last_ended then
    records[#records + 1] = end_record(job.token, payload, 'quarantined', now_ms, job.attempts, why)
  end
  redis.call('ZADD', keys.quarantine, now_ms, job.token)
  for _, item in ipairs({ job.token, 'quarantined', task_in(payload), why }) do ends[#ends + 1] = item end
end
if #over > 0 then
  add_to(keys.counters, 'quarantined', #over)
  leave_batches(over, now_ms * 1000)
end
if #records > 0 then add_records(keys.last_ended, records) end
if not is_worker and #freed > 0 then publish(keys.channel, now_ms) end
return { #freed, #over, cursor, ends }
