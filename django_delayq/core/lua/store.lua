-- Store one job of ours until it is due, if nothing has to be looked up for it: it has no unique key, and was not sent
-- before. This does what schedule.lua does, with half the commands.
--
-- Prelude  clock, window, frame, job
-- Keys     timeout_set, locators, counters, redisson_channel, ranked, delay_queue?, destination?, returned?, retries?, held?,
--          leases?
-- Where    delay_queue: only if the frame also goes there; destination, returned, retries, held, leases: only if the
--          number of jobs in the queue is limited
-- Args     when: '+' ms from now, or '=' epoch ms
--          format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          payload: with the token in the place where we write it
--          most?held: how many jobs the queue may hold
-- Returns  start time, epoch ms; if an ACL closes the channel to us, a list of that and the server's error; nil if
--          schedule.lua has to look closer, or to say what is wrong: then nothing is stored
-- Source   RedissonDelayedQueue.offerAsync, with tokens and the server's clock added

local format, payload = args.format, args.payload
local start = start_time(args.when, read_clock())
local token = payload:sub(12, 33)

if keys.leases then
  -- As schedule.lua counts. That also says that the queue is full, unless it finds the job there.
  local count = redis.call('LLEN', keys.destination)
  for _, set in ipairs({ keys.timeout_set, keys.returned, keys.retries, keys.held, keys.leases }) do
    count = count + redis.call('ZCARD', set)
  end
  if count >= tonumber(args.most) then return nil end
end

local is_ranked = redis.call('ZCARD', keys.ranked) > 0
local number = redis.pcall('HINCRBY', keys.counters, 'number', 1)
if type(number) ~= 'number' then return nil end
local is_placed, is_stored, frame, place
-- With number 1 the counter is new, and has to begin elsewhere, as has one that somebody else has written.
if number > 1 and number < UNLIKELY then frame, place = pack_new(format, keys.delay_queue, number, start, payload) end
if frame then
  -- No type was checked, so if a write fails, the writes before it are undone.
  is_placed = redis.pcall('HSETNX', keys.locators, token, place) == 1
  -- A rank is harmless if its job is not stored after all.
  local is_ready = is_placed
    and (not is_ranked or type(redis.pcall('ZADD', keys.ranked, rank_of(0, start), token)) == 'number')
  is_stored = is_ready and redis.pcall('ZADD', keys.timeout_set, 'NX', string.format('%d', start), frame) == 1
  if is_stored and (not keys.delay_queue or type(redis.pcall('RPUSH', keys.delay_queue, frame)) == 'number') then
    local refusal = redis.pcall('ZRANK', keys.timeout_set, frame) == 0 and publish(keys.redisson_channel, start)
    return refusal and { start, refusal } or start
  end
  if is_stored then redis.call('ZREM', keys.timeout_set, frame) end
end
if is_placed then redis.call('HDEL', keys.locators, token) end
if number == 1 then
  redis.call('HDEL', keys.counters, 'number')
else
  redis.call('HINCRBY', keys.counters, 'number', -1)
end
return nil
