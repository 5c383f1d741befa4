-- Store jobs of ours until they are due. Safe to repeat: a known token is not stored again.
--
-- Prelude  clock, count, window, frame, list, job
-- Keys     timeout_set, delay_queue, redisson_channel, destination, locators, headers, unique, ended, counters,
--          returned?, retries?, held?, leases?, ranked?, control?
-- Where    returned, retries, held, leases: only if the number of jobs in the queue is limited; ranked, control: only if
--          the queue has priorities, or one of these jobs has one
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  frame format, 1 (dLc0) or 2 (Bc0Lc0)
-- ARGV[3]  1: the frames also go into the delay queue
-- ARGV[4]  1: this may have been sent before, so look for each token first
-- ARGV[5]  and on, four a job: token; wait ('+' ms, or '=' epoch ms); tail; payload. Then, if that number is limited,
--          the limit
-- Returns  two a job: start time (epoch ms), and '' or the token of the job that holds the unique key; but if a repeat
--          finds that the job has begun, 0, and '=' with the state in which it ended, or with 'unknown' if it has not
--          ended; and if the queue has no room for all new jobs of the call, how many it holds, and '=uncommitted': it
--          takes none of them; then, if an ACL closes the channel to us, the server's error
-- Source   RedissonDelayedQueue.offerAsync, with tokens, unique keys and the server's clock added

local now_us, format, listed, is_repeat = read_clock(ARGV[1]), ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local now_ms = math.floor(now_us / 1000)

local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
head = head and tonumber(head) or math.huge
redis.call('LLEN', keys.delay_queue)
check_hashes(keys.locators)
if keys.ranked then has_ranks() end

-- One look through the destination queue serves all keys that are held: each look may read a megabyte.
local lying, is_all
local function is_alive(token)
  if redis.call('HEXISTS', keys.headers, token) == 1 then return true end
  local start, kind, id, _, mac = read_locator(redis.call('HGET', keys.locators, token))
  if not start then return false end
  if find_frame(keys.timeout_set, start, kind, id, token, mac) then return true end
  if not lying then lying, is_all = tokens_lying(keys.destination) end
  return lying[token .. mac] or not is_all
end

local reply, fresh, claimed, displaced = {}, {}, {}, {}
for i = 5, #ARGV - 3, 4 do
  local token, start, key = ARGV[i], start_time(ARGV[i + 1], now_us), unique_of(ARGV[i + 2])
  local holder, known, beyond = '', false, nil
  if is_repeat then
    local locator = redis.call('HGET', keys.locators, token)
    if locator then
      known, start = true, read_locator(locator) or start
    else
      beyond = redis.call('HEXISTS', keys.headers, token) == 1 and 'unknown' or how_ended(keys.ended, now_ms, token)
      if beyond then known, start, holder = true, 0, '=' .. beyond end
    end
  end
  if key ~= '' and not known then
    local name = key:sub(2)
    local other = claimed[name] or redis.call('HGET', keys.unique, name)
    if other and other ~= token then
      if claimed[name] or is_alive(other) then
        holder = other
      else
        displaced[#displaced + 1] = other
      end
    end
    if holder == '' then claimed[name] = token end
  end
  local n = #reply
  reply[n + 1], reply[n + 2] = start, holder
  if not known and holder == '' then fresh[#fresh + 1] = i end
end
if #fresh == 0 then return reply end
if keys.leases then
  local most, count = tonumber(ARGV[#ARGV]), redis.call('LLEN', keys.destination)
  for _, set in ipairs({ keys.timeout_set, keys.returned, keys.retries, keys.held, keys.leases }) do
    count = count + redis.call('ZCARD', set)
  end
  if count + #fresh > most then
    local refused = {}
    for _, i in ipairs(fresh) do refused[ARGV[i]] = true end
    for n = 1, #reply, 2 do
      -- A job that gave way to a refused one of its unique key has nobody to wait for.
      if refused[ARGV[2 * n + 3]] or refused[reply[n + 1]] then reply[n], reply[n + 1] = count, '=uncommitted' end
    end
    return reply
  end
end

local number = next_numbers(keys.delay_queue, keys.counters, #fresh, now_ms)
local mark, of, begin = listed and LISTED or UNLISTED, listed and 2 or 1, format == '1' and 2 or 1
local kind, both = 16 + 4 * format + of, '<Bc2>I6<L' .. LOCATOR
local ranks = {}
local members, frames, places, holders, first, last, score = {}, {}, {}, {}, math.huge, nil, nil
for n, i in ipairs(fresh) do
  local token, start, tail, payload = ARGV[i], reply[(i - 5) / 2 + 1], ARGV[i + 2], ARGV[i + 3]
  if start ~= last then last, score = start, decimal(start) end
  local high, low
  -- Our own payload: no stranger has written its bytes.
  if payload:sub(1, 11) == '{"delayq":"' and start < FARTHEST then
    high, low = tonumber(payload:sub(48, 55), 16), tonumber(payload:sub(56, 63), 16)
  end
  local frame, place
  if high and low then
    -- One pack makes what pack_frame() and pack_locator() make: each costs the server as much as a command.
    local packed = struct.pack(both, 8, mark, number + n, #payload, high, low, kind, number + n, start)
    frame, place = packed:sub(begin, 17) .. payload, packed:sub(18)
  else
    local _, mac = token_of(payload)
    frame = pack_frame(format, listed, number + n, payload)
    place = pack_locator(start, format, struct.pack('>c2I6', mark, number + n), mac or NO_MAC)
  end
  members[2 * n - 1], members[2 * n], frames[n] = score, frame, frame
  places[2 * n - 1], places[2 * n] = token, place .. tail
  local key = tail == '' and '' or unique_of(tail)
  if key ~= '' then
    holders[#holders + 1] = key:sub(2)
    holders[#holders + 1] = token
  end
  if start < first then first = start end
  if keys.ranked then ranks[n] = { token = token, tail = tail, start = start } end
end
redis.call('ZADD', keys.timeout_set, 'NX', unpack(members))
if listed then redis.call('RPUSH', keys.delay_queue, unpack(frames)) end
redis.call('HSET', keys.locators, unpack(places))
if #displaced > 0 then redis.call('HDEL', keys.locators, unpack(displaced)) end
if keys.ranked then add_ranks(ranks, true, function(job) return job.start end) end
if #holders > 0 then redis.call('HSET', keys.unique, unpack(holders)) end
if first < head then reply[#reply + 1] = publish(keys.redisson_channel, first) end
return reply
