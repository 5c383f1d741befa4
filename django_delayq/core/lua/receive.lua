-- Store jobs that follow ones of another queue. However often each is sent, it is stored once.
--
-- Prelude  clock, count, window, frame, list, job, unique, new, sent, follow
-- Keys     timeout_set, delay_queue, redisson_channel, locators, headers, unique, ended, counters, ranked, control, retries,
--          returned, leases, destination, sent
-- Args     until_ms: until when the call is good, epoch ms: what somebody sends who was cut off may have been forgotten here since
--          shards: how many shards the queue has; 0: none; empty: the caller does not know
--          follower_count: number of jobs
--          follower_format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          follower_listed: 1: the frames also go into the delay queue
--          names...: by what `sent` knows each
--          followers... (token, when, tail, payload, index): the jobs; index counts them from 0
-- Reply    now_ms: the present time
--          is_late: 1 if the call came too late, and stored nothing; else 0
--          tokens...: those that were stored

local now_us, count = read_clock(), tonumber(args.follower_count)
local now_ms = math.floor(now_us / 1000)
if now_ms > tonumber(args.until_ms) then return { now_ms, 1, {} } end

local pin = redis.call('HGET', keys.control, 'shards')
if pin and args.shards ~= '' and pin:match('^%d+') ~= args.shards then
  return redis.error_reply('OTHERSHARDS the queue has another number of shards')
end

local fresh, unnoted, former = {}, {}, {}
for n = 0, count - 1 do
  local i, at = args.names + n, followers_from() + #args.followers * n
  local name, token = args.names[i], args.followers[at].token
  if not was_sent(name) then
    unnoted[#unnoted + 1] = name
    -- A worker of an earlier version has sent it, and died before the job before it had ended.
    if was_sent(token) then
      former[#former + 1] = token
    else
      fresh[n] = { token = '' }
    end
  end
end
if #unnoted == 0 then return { now_ms, 0, {} } end
local found = find_followers(fresh, now_us, is_alive)
note_sent(unnoted, now_ms)
if #former > 0 then redis.call('ZREM', keys.sent, unpack(former)) end
local is_stored, refusal = pcall(store_followers, found, now_ms)
if not is_stored then
  forget_sent(unnoted)
  raise(refusal)
end
return { now_ms, 0, found and found.tokens or {} }
