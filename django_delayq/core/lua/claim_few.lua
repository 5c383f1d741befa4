-- Lease a few due frames if there is nothing else to do, at a part of claim.lua's cost: the queue is not paused, and has
-- neither priorities nor limits of its own and held no due job back, no lease is over, no retry is due, the destination queue is empty, and each
-- frame is a job of ours that was never in the delay queue and begins for the first time. Otherwise do nothing: the
-- caller has to use claim.lua.
--
-- Prelude  clock, count, window, frame, job, service
-- Keys     timeout_set, destination, leases, retries, returned, headers, payloads, locators, ended, claims, control
-- Args     owner: 8 bytes: the process that asks
--          request: 8 random bytes, never used before: the fencing token of every lease given
--          limit: jobs
--          lease_ms: how long a lease lasts
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          read_format: the format that the caller reads
-- Returns  what claim.lua returns; nil if the caller has to use that

-- More frames, or more bytes in all of them, are for claim.lua.
local FEW = 8
local SMALL = 16384

local now_us, owner, request = read_clock(), args.owner, args.request
local limit, lease_ms, format = math.min(tonumber(args.limit), FEW), tonumber(args.lease_ms), args.format
local now_ms = math.floor(now_us / 1000)

local fields = redis.call('HMGET', keys.control, 'format', 'service', 'paused', 'paused_tasks', 'ranked', 'queue_limit', 'held_till')
if fields[3] or fields[5] or fields[6] or (tonumber(fields[1] or 0) or 0) > tonumber(args.read_format) then return nil end
local service = unpack_service(fields[2])
if not service or now_ms < service.till or not is_current(service, now_ms, lease_ms, true) then return nil end

local wait = math.huge
for _, set in ipairs({ keys.leases, keys.retries, keys.returned }) do
  local head = tonumber(redis.call('ZRANGE', set, '0', '0', 'WITHSCORES')[2] or math.huge)
  if head <= now_ms then return nil end
  wait = math.min(wait, head)
end
if redis.call('LLEN', keys.destination) > 0 then return nil end

-- One frame more than is leased, as it says how long to wait.
local found = redis.call('ZRANGE', keys.timeout_set, '0', '1', 'WITHSCORES')
if limit > 1 and found[4] and tonumber(found[4]) <= now_ms then
  local size = #found[1] + #found[3]
  if size > SMALL then return nil end
  local rest = redis.call('ZRANGE', keys.timeout_set, '2', limit, 'WITHSCORES')
  for i = 1, #rest do
    found[4 + i] = rest[i]
    size = size + #rest[i]
  end
  if size > SMALL then return nil end
end

local held_till = held_until(fields[7], now_ms)
local frames, tokens, jobs = {}, {}, {}
for i = 1, #found, 2 do
  local start = tonumber(found[i + 1])
  if start > now_ms or #frames == limit then
    if start <= now_ms and limit == FEW then return nil end
    wait = math.min(wait, start)
    break
  end
  local payload, id = unpack_frame(found[i], format)
  if start < held_till or not payload or not is_score(start) or not unlisted_number(found[i]) then return nil end
  local token, mac = token_of(payload)
  -- A token that comes twice is a copy: both frames would be the job that the locator knows.
  if not token or tokens[token] then return nil end
  tokens[token] = true
  local n = #frames + 1
  frames[n], tokens[n] = found[i], token
  jobs[n] = { attempts = 0, kills = 0, start = start, payload = payload, id = id, mac = mac }
end

local reply = { now_us, -1, 0, 0, 0, 0, 0, false, fields[4], 0, 0, false, false }
if #frames > 0 then
  local begun = redis.call('HMGET', keys.headers, unpack(tokens))
  local over = redis.call('ZMSCORE', keys.ended, unpack(tokens))
  local places = redis.call('HMGET', keys.locators, unpack(tokens))
  local lease_end, header_of = now_ms + lease_ms, leased_headers(request, owner, now_ms)
  local ends, heads, bodies = {}, {}, {}
  for i, job in ipairs(jobs) do
    local token, start, payload = tokens[i], job.start, job.payload
    local located, kind, id, tail, mac = unpack_locator(places[i])
    local is_certain = located and kind > 0 and id == job.id and mac == job.mac
    if not is_certain or begun[i] or over[i] then return nil end
    -- A unique key that begins with 's' is free from now on, a job may have to wait behind another, a limit may be full,
    -- and whoever ends a job of a batch has to know.
    if tail ~= '' and (tail:byte(unique_at(tail)) == 115 or limit_of(tail) or batch_of(tail) or tail:byte(1) == 120 and (tail:byte(2) or 0) >= 128) then
      return nil
    end
    ends[2 * i - 1], ends[2 * i] = lease_end, token
    heads[2 * i - 1], heads[2 * i] = token, header_of(job, tail)
    bodies[2 * i - 1], bodies[2 * i] = token, payload
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = token, 0, 0
    reply[n + 4], reply[n + 5], reply[n + 6] = start, payload, 0
  end
  wait = math.min(wait, lease_end)
  -- First what a full server does not refuse; then payloads, which were not read: these two may have the wrong type.
  redis.call('HDEL', keys.claims, owner)
  redis.call('HSET', keys.payloads, unpack(bodies))
  redis.call('ZREM', keys.timeout_set, unpack(frames))
  redis.call('HDEL', keys.locators, unpack(tokens))
  redis.call('ZADD', keys.leases, unpack(ends))
  redis.call('HSET', keys.headers, unpack(heads))
  redis.call('HSET', keys.claims, owner, request .. struct.pack('<d', lease_end))
end
if wait < math.huge then reply[2] = math.max(0, wait * 1000 - now_us) end
return reply
