-- Give a job that waits and holds a unique key what a later call of that key asks for: other arguments, another start
-- time, or both. Its id stays. With other arguments it begins anew, with its first attempt. Safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, unique, find, held, limit
-- Keys     timeout_set, delay_queue, destination, leases, retries, dead, quarantine, headers, payloads, locators,
--          errors, unique, ended, counters, returned, held, held_tasks, redisson_channel, channel, ranked, control,
--          slots, paces
-- Args     holder: token of the holder
--          request: token of the job that the later call made; the same when the call is repeated
--          when: wait: '+' ms from now, or '=' epoch ms
--          moves: which start time counts: the 'later' or the 'sooner' of the two; empty: the holder's
--          longest_ms: for how long a later call may put off the first one (ms); empty: for ever
--          tail: tail of the later call
--          payload: its payload, signed for the holder's token; empty: the arguments stay
--          linked: the MAC of the holder's payload, if that names jobs that follow, or a batch, which the new payload names as well
-- Reply    outcome: 'replaced', or 'kept' if nothing had to change; if the job does not wait, or holds the key no more, the state in which
--            it was left; 'linked' if the holder's payload may name jobs that follow, or a batch, and has another MAC: then nothing
--            was changed
--          seen...: what inspect.lua returns, as the job is now; empty if it was left
--          payload: that of a 'linked' one, else ''
--          mac: likewise
--          refusal: the server's error if an ACL closes the channel to us, else ''

local now_us, token, request, mode, tail, payload = read_clock(), args.holder, args.request, args.moves, args.tail, args.payload
local now_ms, longest_ms = math.floor(now_us / 1000), tonumber(args.longest_ms)

local function reply(outcome, refusal)
  return { outcome, look_at(token, find_job(token, now_ms), now_ms), '', '', refusal or '' }
end

-- Whether a payload may name jobs that follow its own, or a batch. An argument of these names reads the same.
local function has_links(text)
  return text:find('\\"follow\\":{', 1, true) or text:find('\\"batch\\":\\"', 1, true)
end

-- A repeat: the first reply was lost. What that call did is noted beside the jobs that ended, for as long.
if redis.call('ZSCORE', keys.ended, request) then return reply('replaced') end

local job, key = find_job(token, now_ms), unique_of(tail):sub(2)
local place = job.waits or is_given_up(job) and keys.leases
local attempts, kills, due, start = job.attempts, job.kills, job.start, job.score
local known = (place or job.frame or job.payload) and job.tail
-- A job that is held, or was given up, is due from its start time on.
if place and place ~= keys.retries and place ~= keys.returned then start = due end
check_hashes(keys.unique)
local is_holder = redis.call('HGET', keys.unique, key) == token
-- What is too late holds it no more; the caller stores its job.
if is_holder and is_too_late(token, now_ms) then return { 'expired', {}, '', '', '' } end
if not known or not is_holder or unique_of(known):sub(2) ~= key then
  -- The key of a job that has gone is free.
  if is_holder and job.state ~= 'running' and job.state ~= 'held' and job.state ~= 'unknown' then
    redis.call('HDEL', keys.unique, key)
    if job.locator and not known then redis.call('HDEL', keys.locators, token) end
  end
  return { job.state, {}, '', '', '' }
end

-- Only who has a key can sign what follows the holder once more.
if payload ~= '' then
  local before = job.payload or job.frame and unpack_frame(job.frame) or redis.call('HGET', keys.payloads, token) or ''
  local _, mac_before = token_of(before)
  if mac_before and mac_before ~= args.linked and has_links(before) then return { 'linked', {}, before, mac_before, '' } end
end

-- What it becomes. A job with a moment was due before, and its limit has it wait: nothing has that sooner.
local first, ahead = run_of(known)
local limit, flags = limit_of(known)
local has_moment = limit and of_limits().is_paid(flags)
local asked, target = start_time(args.when, now_us), start
if mode == 'later' then
  if longest_ms then
    first = first or now_ms
    asked = math.min(asked, first + longest_ms)
  end
  target = math.max(start, asked)
elseif mode == 'sooner' and not has_moment then
  target = math.min(start, asked)
end
local is_moved = target ~= start
tail = with_run(payload ~= '' and with_batch(tail, batch_of(known)) or known, first, ahead)

check_sets(keys.retries, keys.returned, keys.held_tasks)
check_hashes(keys.payloads, keys.errors, keys.locators, keys.counters)
redis.call('LLEN', keys.delay_queue)
local is_ranked, mac, refusal, _ = has_ranks(), nil, nil, nil
if payload ~= '' then _, mac = token_of(payload) end

-- Where a payload lies in a list; nil: nowhere. It costs a scan, as taking it out would.
local function index_in(list, element, is_backwards)
  return redis.call('LPOS', list, element, 'RANK', is_backwards and -1 or 1) or nil
end

if payload == '' and not is_moved and tail == known then
  -- It is late enough, or soon enough, as it is.
  is_ranked, tail = false, ''
elseif place then
  if payload ~= '' then attempts, kills = 0, 0 end
  if payload ~= '' or is_moved then
    local name = place == keys.held and read_held(redis.call('HGET', keys.errors, token))
    local waiting, limited = waiting_set(keys.retries, keys.returned, attempts, kills), {}
    if has_moment and not is_moved and limit_of(tail) == limit then
      -- It keeps its moment with its start time, or calls that come more often than the rate would put it off for ever.
      tail = of_limits().with_paid(tail, true)
    elseif not name then
      add_if_limited(limited, token, job)
    end
    if #limited > 0 then
      free_slots(limited, now_ms)
      -- At another time, it needs another moment; with other arguments, perhaps that of another limit.
      if payload == '' then tail = of_limits().with_paid(tail, false) end
    end
    redis.call('ZREM', place, token)
    if name then
      -- Other arguments may be of another key, and a job that is moved can be held for the whole time again.
      redis.call('ZREM', keys.held_tasks, held_member(name, due, known, token))
      redis.call('HDEL', keys.errors, token)
    end
    redis.call('ZADD', waiting, target, token)
    if payload ~= '' then redis.call('HSET', keys.payloads, token, payload) end
    due = target
    refusal = publish(keys.channel, target)
  end
  redis.call('HSET', keys.headers, token, write_job({ attempts = attempts, kills = kills, start = due, tail = tail }))
elseif job.frame then
  local head, frame, index = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2], job.frame, nil
  if payload ~= '' then
    frame = frame:sub(1, job.format == 2 and 9 or 8) .. struct.pack('<L', #payload) .. payload
    local plan = locate_listed(keys.delay_queue, { job.frame }, keys.counters)
    index = plan.indexes[1] or plan.rest[1] and index_in(keys.delay_queue, job.frame, plan.backwards)
  end
  redis.call('ZREM', keys.timeout_set, job.frame)
  redis.call('ZADD', keys.timeout_set, target, frame)
  if index then redis.call('LSET', keys.delay_queue, index, frame) end
  job.start, job.mac, job.tail = target, mac or job.mac, tail
  redis.call('HSET', keys.locators, token, write_locator(job))
  if target < tonumber(head) then refusal = publish(keys.redisson_channel, target) end
elseif is_moved then
  redis.call('LREM', keys.destination, 1, job.payload)
  redis.call('HDEL', keys.locators, token)
  redis.call('ZADD', keys.returned, target, token)
  redis.call('HSET', keys.headers, token, write_job({ start = target, tail = tail }))
  redis.call('HSET', keys.payloads, token, payload ~= '' and payload or job.payload)
  refusal = publish(keys.channel, target)
else
  if payload ~= '' then
    redis.call('LSET', keys.destination, index_in(keys.destination, job.payload), payload)
  end
  job.mac, job.tail = mac or job.mac, tail
  redis.call('HSET', keys.locators, token, write_locator(job))
  is_ranked, tail = false, ''
end
add_ranks({ { token = token, tail = tail } }, is_ranked, function() return target end)
remember(keys.ended, now_ms, 'taken', { request })
return reply(payload == '' and not is_moved and 'kept' or 'replaced', refusal)
