-- Store jobs of ours until they are due. Safe to repeat: a known token is not stored again.
--
-- Prelude  clock, count, window, frame, list, job, unique, new, sent, held, batch
-- Keys     timeout_set, delay_queue, redisson_channel, destination, locators, headers, unique, ended, counters,
--          ranked, control, returned?, retries?, held?, leases?, sent?, batches?
-- Where    held: only if the number of jobs in the queue is limited; returned, retries, leases: then, and if one of these jobs
--          has a tail; sent: only if these are rows of a database;
--          batches: only if one of these is in a batch
-- Args     format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: the frames also go into the delay queue
--          is_repeat: 1: this may have been sent before, so look for each token first
--          shards: how many shards the queue has; 0: none
--          most?held: how many jobs the queue may hold
--          jobs... (token, when, tail, payload): a tail that says when the first of its unique key was scheduled gets the
--            present time there; one that says that it waits behind a job gets the holder of its key, if a worker has that,
--            and waits behind none otherwise
-- Reply    refusal: the server's error if an ACL closes the channel to us, else ''
--          others... (index, outcome): those that were not stored now, nil if all were. The token of the job that holds
--            their unique key, unless the job waits behind that. If a repeat finds that one has begun, '=' with the state
--            in which it ended, or with 'unknown' if it has not ended. If the queue has no room for all new jobs of the
--            call, '=uncommitted': it takes none of them
--          *starts: for each job its start time, epoch ms; 0 if it has begun, and for '=uncommitted' how many jobs there are
-- Source   RedissonDelayedQueue.offerAsync, with tokens, unique keys and the server's clock added

local now_us, format, listed, is_repeat = read_clock(), args.format, args.listed == '1', args.is_repeat ~= '0'
local now_ms = math.floor(now_us / 1000)

local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
head = head and tonumber(head) or math.huge
redis.call('LLEN', keys.delay_queue)
check_hashes(keys.locators)
local is_ranked, pin = has_ranks()
if pin and pin:match('^%d+') ~= args.shards then return redis.error_reply('OTHERSHARDS the queue has another number of shards') end
if keys.batches then check_hashes(keys.batches) end

-- Whether nothing can change a living holder any more: a worker has it, it lies deep in the destination queue, or
-- somebody has spoilt its header.
local function has_begun(token)
  local header = redis.call('HGET', keys.headers, token)
  local job = read_job(header)
  if header then return not job or job.fence ~= NOBODY end
  local place = place_of(token)
  return place and not find_frame(keys.timeout_set, place, token) and not lying[token .. place.mac]
end

-- Unique keys and their holders in turn, where a job has lost a key to the one that it waits behind.
local passed_back = {}

local reply, others, fresh, starts, claimed, displaced, unnoted = { '', false }, {}, {}, {}, {}, {}, {}
-- Of many jobs, most wait equally long.
local count, last_when, last_start = 0, nil, nil
for i = args.jobs, #ARGV, #args.jobs do
  local token, when, tail = args.jobs[i].token, args.jobs[i].when, args.jobs[i].tail
  if when ~= last_when then last_when, last_start = when, start_time(when, now_us) end
  local start = last_start
  local key = tail == '' and '' or unique_of(tail)
  local holder, known, beyond = '', false, nil
  local sent = keys.sent and was_sent(token)
  if keys.sent and not sent then unnoted[#unnoted + 1] = token end
  if is_repeat then
    local locator = redis.call('HGET', keys.locators, token)
    if locator then
      local place = read_locator(locator)
      known, start = true, place and place.start or start
    else
      beyond = redis.call('HEXISTS', keys.headers, token) == 1 and 'unknown' or how_ended(keys.ended, now_ms, token) or sent
      if beyond then known, start, holder = true, 0, '=' .. beyond end
    end
  end
  if key ~= '' and not known then
    local name, first, ahead = key:sub(2), run_of(tail)
    local other, is_passed_back = claimed[name], false
    if not other then other, is_passed_back = holder_of(name, now_ms) end
    if is_passed_back then passed_back[#passed_back + 1], passed_back[#passed_back + 2] = name, other end
    if not other or other == token then
      other = nil
    elseif claimed[name] or is_alive(other) then
      if not ahead or claimed[name] or not has_begun(other) then holder = other end
    else
      displaced[#displaced + 1], other = other, nil
    end
    if holder == '' then claimed[name] = token end
    if first or ahead then args.jobs[i].tail = with_run(tail, first and now_ms, ahead and other) end
  end
  local n = (i - args.jobs) / #args.jobs
  reply[n + 3] = start
  if holder ~= '' then
    others[#others + 1], others[#others + 2], reply[2] = n, holder, others
  elseif not known then
    count = count + 1
    fresh[count], starts[count] = i, start
  end
end
if #passed_back > 0 then redis.call('HSET', keys.unique, unpack(passed_back)) end
-- One that another job of its unique key kept out as well: once that job has ended, a repeat must not store it.
if #unnoted > 0 then note_sent(unnoted, now_ms) end
if count == 0 then return reply end
if keys.held then
  local most, held = tonumber(args.most), redis.call('LLEN', keys.destination)
  for _, set in ipairs({ keys.timeout_set, keys.returned, keys.retries, keys.held, keys.leases }) do
    held = held + redis.call('ZCARD', set)
  end
  if held + count > most then
    local refused = {}
    for _, i in ipairs(fresh) do
      refused[args.jobs[i].token] = true
      others[#others + 1], others[#others + 2], reply[2] = (i - args.jobs) / #args.jobs, '=uncommitted', others
    end
    for n = 1, #others, 2 do
      -- A job that gave way to a refused one of its unique key has nobody to wait for.
      if refused[others[n + 1]] then others[n + 1] = '=uncommitted' end
      if others[n + 1] == '=uncommitted' then reply[others[n] + 3] = held end
    end
    return reply
  end
end

local is_stored, first = pcall(store_new, fresh, starts, format, listed, now_ms, is_ranked)
if not is_stored then
  if #unnoted > 0 then forget_sent(unnoted) end
  raise(first)
end
if keys.batches then join_batches(fresh) end
if #displaced > 0 then redis.call('HDEL', keys.locators, unpack(displaced)) end
if first < head then reply[1] = publish(keys.redisson_channel, first) or '' end
return reply
