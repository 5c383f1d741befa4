-- Put back elements, confirmed or not, that never reached their caller. Safe to repeat.
--
-- An element without a history goes back to the head of the destination queue, in order, where Java finds it as well.
-- An element with a history or an id stays among the leases, and can be claimed at once: in the list it would lose
-- both.
--
-- Prelude  clock, count, window, frame, job
-- Keys     leases, headers, payloads, destination, ended, counters, claims, channel, locators
-- Args     owner: 8 bytes: who claimed them
--          jobs... (token, fence, payload): three an element, in the order they were claimed: token; fencing token; payload
-- Returns  how many were put back

local now_ms, owner = math.floor(read_clock() / 1000), args.owner

redis.call('LLEN', keys.destination)
check_hashes(keys.locators)
-- The next claim has to recognise elements that are jobs, or that may be jobs as they came in a frame.
local places = {}
local function put_back(token, payload)
  local own, mac = token_of(payload)
  if own == token or own and token:byte(17) == 102 then places[#places + 1] = { own, mac, own == token } end
end

local held, confirmed, expired, backwards = {}, {}, {}, {}
for i = #ARGV - #args.jobs + 1, args.jobs, -#args.jobs do
  local token, payload = args.jobs[i].token, args.jobs[i].payload
  local header = redis.call('HGET', keys.headers, token)
  if header then
    local job = read_job(header)
    if job and job.fence == args.jobs[i].fence then
      if job.attempts + job.kills == 0 and token_of(payload) ~= token then
        held[#held + 1] = token
        backwards[#backwards + 1] = payload
        put_back(token, payload)
      else
        expired[#expired + 1] = 0
        expired[#expired + 1] = token
      end
    end
  elseif redis.call('ZSCORE', keys.ended, token .. args.jobs[i].fence) then
    confirmed[#confirmed + 1] = token
    confirmed[#confirmed + 1] = token .. args.jobs[i].fence
    backwards[#backwards + 1] = payload
    put_back(token, payload)
  end
end

redis.call('HDEL', keys.claims, owner)
if #held > 0 then
  redis.call('ZREM', keys.leases, unpack(held))
  redis.call('HDEL', keys.headers, unpack(held))
  redis.call('HDEL', keys.payloads, unpack(held))
end
if #confirmed > 0 then
  redis.call('ZREM', keys.ended, unpack(confirmed))
  add_to(keys.counters, 'taken', -#confirmed / 2)
end
for _, place in ipairs(places) do
  local own, mac, is_job = place[1], place[2], place[3]
  if is_job then
    redis.call('HSET', keys.locators, own, write_locator({ start = now_ms, format = 0, id = NOBODY, mac = mac, tail = '' }))
  else
    leave_unsure(keys.locators, own, mac, now_ms)
  end
end
if #backwards > 0 then redis.call('LPUSH', keys.destination, unpack(backwards)) end
if #expired > 0 then
  redis.call('ZADD', keys.leases, 'XX', unpack(expired))
  publish(keys.channel, now_ms)
end
return #backwards + #expired / 2
