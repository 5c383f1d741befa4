-- Prelude: limits of tasks: how many of their jobs run at a time, and how often one starts. docs/internals.md, "Limits".
--
-- Needs _clock, _window, _frame, _job, _held. The set of slots has a member for each leased job that has a
-- limit: the limit as in its tail, '\0', token; all scores are 0. A slot goes with its lease. A job whose limit is full is
-- held under the name of the limit and its key. In the set of paces, the score of a limit is its theoretical arrival
-- time, us: when the next job would start if all came evenly.
--
-- Control has a field 'limit:' and the name for each: a JSON object with code, what the code of a worker says, and set,
-- what somebody has set instead. Each may have concurrency, jobs at a time; and rate, as text, with interval_us between
-- two starts and burst, the starts that may come at once. 0 and '' stand for no limit. What cannot be read is none.

-- All that there is to do about limits, in a table: a script makes these functions only if a job has a limit.
local function of_limits()
  local function has_flag(flags, flag)
    return math.floor(flags / flag) % 2 == 1
  end

  local function with_flag(tail, flag, is_set)
    local flags = tail:byte(2)
    return 'x' .. string.char(flags - (has_flag(flags, flag) and flag or 0) + (is_set and flag or 0)) .. tail:sub(3)
  end

  -- The tail of a job with a limit, with or without the flag PAID; and whether its flags say so.
  local function with_paid(tail, is_paid)
    return with_flag(tail, 2, is_paid)
  end

  local function is_paid(flags)
    return has_flag(flags, 2)
  end

  -- The same for the flag GIVEN.
  local function with_given(tail, is_given)
    return with_flag(tail, 8, is_given)
  end

  local function is_given(flags)
    return has_flag(flags, 8)
  end

  -- Whether a job that has its moment starts soon behind it. Moments go on while workers are busy with other jobs, and all
  -- jobs that got one would start together: one that comes later than a burst, or a tenth of a second, needs another.
  local function is_in_time(job, limit, now_us)
    local set = waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
    local due = redis.call('ZSCORE', set, job.token)
    return due and now_us - due * 1000 <= math.max((limit.slack or 0) + (limit.interval or 0), 100000)
  end

  -- What is in force: .most, jobs at a time; .interval and .slack (us), by which a burst may come too early, and .rate; each
  -- nil if there is no such limit.
  local function in_force(code, set)
    code, set = type(code) == 'table' and code or {}, type(set) == 'table' and set or {}
    local most, rate = tonumber(set.concurrency or code.concurrency), set.rate and set or code
    local interval, burst = tonumber(rate.interval_us), tonumber(rate.burst)
    if not (most and most >= 1) then most = nil end
    if not (interval and burst and interval > 0 and burst >= 1 and interval * burst < 1000000000000000) then
      return { most = most }
    end
    return { most = most, interval = interval, slack = interval * (burst - 1), rate = tostring(rate.rate) }
  end

  local function read_limit(limit)
    local stored = redis.call('HGET', keys.control, 'limit:' .. limit:match('^%Z*'))
    local limits = decode_table(stored or nil)
    local found = in_force(limits.code, limits.set)
    found.is_known = limits.code ~= nil or limits.set ~= nil
    return found
  end

  -- The arrival time of a pace, never before now. No rate goes further ahead than a burst and one job that has its moment,
  -- but for what clocks differ. If it is a second further off, the clock was set back, or the rate was slower before: one
  -- job may start now.
  local function arrival(score, limit, now_us)
    local number = tonumber(score or nil)
    if not number or not is_score(number) then return now_us end
    if number > now_us + limit.slack + 2 * limit.interval + 1000000 then return now_us + limit.slack end
    return math.max(number, now_us)
  end

  -- Gives a moment back whose job starts at another time, or never: the next job gets it. One that is not the last stays
  -- given, or two would start at the last.
  local function return_moment(limit, due_ms)
    local its, pace = read_limit(limit), tonumber(redis.call('ZSCORE', keys.paces, limit) or nil)
    if not its.interval or not pace or due_ms * 1000 < pace - its.slack - its.interval then return end
    redis.call('ZADD', keys.paces, string.format('%.2f', pace - its.interval), limit)
  end

  -- What a limit holds jobs for.
  local function held_under(limit)
    return reason_of('limit', limit:match('^(%Z*)%z?(.*)$'))
  end

  local function count_slots(limit)
    return redis.call('ZLEXCOUNT', keys.slots, '[' .. limit .. '\0', '(' .. limit .. '\1')
  end

  -- Slots of a limit whose leases somebody has deleted, among 100 of them.
  local function stale_slots(limit)
    local slots = redis.call('ZRANGEBYLEX', keys.slots, '[' .. limit .. '\0', '(' .. limit .. '\1', 'LIMIT', 0, 100)
    local tokens, stale = {}, {}
    if #slots == 0 then return stale end
    for i, slot in ipairs(slots) do tokens[i] = slot:match('[^%z]*$') end
    for i, lease in ipairs(redis.call('ZMSCORE', keys.leases, unpack(tokens))) do
      if not lease then stale[#stale + 1] = slots[i] end
    end
    return stale
  end

  local function check_limits()
    check_sets(keys.leases, keys.slots, keys.held, keys.held_tasks, keys.paces, keys.retries, keys.returned, keys.ranked)
    check_hashes(keys.control, keys.errors, keys.headers)
  end

  -- Paces of the past say nothing any more. values: scores and members in turn.
  local function keep_paces(values, now_us)
    redis.call('ZADD', keys.paces, unpack(values))
    local old = redis.call('ZRANGEBYSCORE', keys.paces, '-inf', string.format('(%.0f', now_us), 'LIMIT', 0, #values + 16)
    if #old > 0 then redis.call('ZREM', keys.paces, unpack(old)) end
  end

  -- The first members that are held under a name, as claims order what waits: the highest priority first; or what has
  -- waited longest, if each point of priority is worth a time.
  local function first_held(name, most)
    local from, past, found = name .. '\0', '(' .. name .. '\1', {}
    local step_ms = tonumber(redis.call('HGET', keys.control, 'priority_step') or nil)
    if not step_ms then return redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. from, past, 'LIMIT', 0, most) end
    -- There are fewer levels. The rest is for members that no script of ours has written.
    for _ = 1, 1000 do
      local members, level = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. from, past, 'LIMIT', 0, most), nil
      if #members == 0 then break end
      for _, member in ipairs(members) do
        local digits = member:sub(#name + 2, #name + 17)
        if #digits == 16 and not digits:find('%D') then
          local rank = tonumber(digits)
          level = level or math.floor(rank / LEVEL)
          if rank >= (level + 1) * LEVEL then break end
          found[#found + 1] = { rank - level * LEVEL + level * step_ms, member }
        end
      end
      from = level and name .. '\0' .. string.format('%016.0f', (level + 1) * LEVEL) or members[#members] .. '\0'
    end
    table.sort(found, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      return a[2] < b[2]
    end)
    for i, item in ipairs(found) do found[i] = i <= most and item[2] or nil end
    return found
  end

  -- Let the first jobs that are held for a limit go on: as many as it admits, and `most` of them at most. Of a rate, each
  -- gets the moment at which it may start; the one behind it gets its own when that moment has come. Call check()
  -- before the first write.
  local function let_go(limit, most, now_ms)
    local name, now_us = held_under(limit), now_ms * 1000
    local found = first_held(name, most)
    if #found == 0 then return 0 end
    local its, members, tokens, jobs, first = read_limit(limit), {}, {}, {}, math.huge
    if its.most then most = its.most - count_slots(limit) end
    local pace = its.interval and arrival(redis.call('ZSCORE', keys.paces, limit), its, now_us)
    for _, member in ipairs(found) do
      local moment = pace and pace - its.slack
      if #tokens >= most or moment and moment > now_us + its.interval then break end
      members[#members + 1] = member
      local _, token = split_member(member)
      if token and redis.call('ZSCORE', keys.held, token) then
        local job = job_of(token) or { token = token, attempts = 0, kills = 0, tail = '', start = now_ms }
        tokens[#tokens + 1] = token
        job.due = now_ms
        local _, flags = limit_of(job.tail)
        if moment and flags and not is_paid(flags) then
          pace = pace + its.interval
          job.due = math.max(job.due, math.ceil(moment / 1000))
          job.fence, job.claimed, job.tail = nil, nil, with_paid(job.tail, true)
          job.header = write_job(job)
        end
        first = math.min(first, job.due)
        jobs[#jobs + 1] = job
      end
    end
    if #members == 0 then return 0 end
    local is_ranked = has_ranks()
    redis.call('ZREM', keys.held_tasks, unpack(members))
    if #tokens == 0 then return 0 end
    redis.call('ZREM', keys.held, unpack(tokens))
    redis.call('HDEL', keys.errors, unpack(tokens))
    for i, job in ipairs(jobs) do
      local waiting = waiting_set(keys.retries, keys.returned, job.attempts, job.kills)
      redis.call('ZADD', waiting, in_turn(job.due, i, #jobs), job.token)
      if job.header then redis.call('HSET', keys.headers, job.token, job.header) end
    end
    if pace then keep_paces({ string.format('%.2f', pace), limit }, now_us) end
    add_ranks(jobs, is_ranked, function(job) return job.due > now_ms and job.due or math.min(job.start, now_ms) end)
    publish(keys.channel, first)
    return #tokens
  end

  return { in_force = in_force, read = read_limit, arrival = arrival, held_under = held_under, count_slots = count_slots,
    check = check_limits, keep_paces = keep_paces, let_go = let_go, with_paid = with_paid, is_paid = is_paid,
    with_given = with_given, is_given = is_given, is_in_time = is_in_time, stale_slots = stale_slots,
    return_moment = return_moment }
end

-- Free the slots of jobs whose leases end, and let those go on that wait for them; wake whoever waits because the queue
-- has as many leases as it may have. Call it before the first write, or check() before that. jobs: each with .token and
-- .tail; and .due if it waits, perhaps for its moment.
local function free_slots(jobs, now_ms)
  local members, limits, freed = {}, {}, {}
  for _, job in ipairs(jobs) do
    local limit = job.tail ~= '' and limit_of(job.tail)
    if limit then
      members[#members + 1] = limit .. '\0' .. job.token
      if not freed[limit] then limits[#limits + 1] = limit end
      freed[limit] = (freed[limit] or 0) + 1
    end
  end
  local limited = of_limits()
  limited.check()
  if redis.call('HDEL', keys.control, 'full') == 1 then publish(keys.channel, now_ms) end
  if #members == 0 then return end
  redis.call('ZREM', keys.slots, unpack(members))
  for _, job in ipairs(jobs) do
    local limit, flags = nil, nil
    if job.due then limit, flags = limit_of(job.tail) end
    if limit and limited.is_paid(flags) then limited.return_moment(limit, job.due) end
  end
  if redis.call('ZCARD', keys.held) == 0 then return end
  for _, limit in ipairs(limits) do limited.let_go(limit, freed[limit], now_ms) end
end

-- Adds a job that find_job() has found if it has a limit, for free_slots(): a job whose worker has died has a slot, and
-- one that has its moment stands before others.
local function add_if_limited(jobs, token, job)
  if limit_of(job.tail) then jobs[#jobs + 1] = { token = token, tail = job.tail, due = job.score } end
end

-- The limit that jobs are held for, as tails have it; nil if it is something else.
local function limit_named(reason)
  local name, key = named('limit', reason)
  return name and name .. '\0' .. key
end

-- The tail of a job that gets a limit now.
local function with_limit(tail, limit)
  local middle = struct.pack('>I2', #limit) .. limit
  if tail:byte(1) ~= 120 or #tail < 5 then return 'x\8d' .. middle .. tail end
  return of_limits().with_given(tail:sub(1, 3) .. middle .. tail:sub(6 + (struct.unpack('>I2', tail, 4))), true)
end
