-- Forget what belongs to no job or process any more, in a part of one of our hashes: Java took the frame, somebody
-- deleted a key, or a process vanished. A set whose scores are times loses the members whose time has passed. On a queue
-- with priorities, rank the jobs that waited before it had any.
--
-- Prelude  clock, count, window, frame, list, job, unique, find
-- Keys     timeout_set, destination, locators, unique, headers, payloads, errors, swept, leases, retries, returned,
--          held, dead, quarantine, control, ranked
-- Where    swept: the hash or set that is swept
-- Args     which: which hash: 'locators', 'headers', 'errors', 'unique', 'notes', 'progress' or 'claims'; or which set: 'ended', 'sent'
--            or 'paces'
--          cursor: cursor of the last call, 0 at first
--          count: about how many fields or members to look at
-- Reply    cursor: the next one, 0 at the end
--          forgotten: fields forgotten and jobs ranked. Locators are not forgotten while the destination queue is too long, or too
--            large, to be looked through

local now_us, which = read_clock(), args.which
local now_ms = math.floor(now_us / 1000)
-- A claim is repeated within seconds, so its request is kept for longer than that.
local CLAIM_KEPT_MS = 60000

-- Those who write to these sets forget some of what is over. After the last write, nobody else does.
local last_over = { ended = decimal((now_ms - ENDED_MS) * 8), sent = decimal(now_ms), paces = '(' .. decimal(now_us) }
if last_over[which] then
  local over = redis.call('ZCOUNT', keys.swept, '-inf', last_over[which])
  local most = math.min(over, tonumber(args.count))
  if most > 0 then redis.call('ZREMRANGEBYRANK', keys.swept, 0, most - 1) end
  return { over > most and '1' or '0', most }
end

-- A job that has a header is in one of these.
local places = { keys.leases, keys.retries, keys.returned, keys.held, keys.dead, keys.quarantine }
local function is_anywhere(token)
  for _, place in ipairs(places) do
    if redis.call('ZSCORE', place, token) then return true end
  end
  return false
end

check_hashes(keys.unique, keys.headers, keys.payloads, keys.errors)
local lying, is_all
if which == 'locators' then
  if redis.call('LLEN', keys.destination) <= SEARCHED then lying, is_all = tokens_lying(keys.destination) end
  if not is_all then return { args.cursor, 0 } end
end

-- The hash of errors has a second field for a job.
local function token_in(field)
  return field:sub(1, #HISTORY) == HISTORY and field:sub(#HISTORY + 1) or field
end

local function is_over(field, value)
  if which == 'locators' then
    local place = read_locator(value)
    return not place or not lying[field .. place.mac] and not find_frame(keys.timeout_set, place, field)
  elseif which == 'headers' or which == 'errors' then
    return not is_anywhere(token_in(field))
  elseif which == 'unique' then
    return redis.call('HEXISTS', keys.headers, value) == 0 and redis.call('HEXISTS', keys.locators, value) == 0
  elseif which == 'notes' then
    return redis.call('HEXISTS', keys.locators, field) == 0
  elseif which == 'progress' then
    return not redis.call('ZSCORE', keys.leases, field)
  end
  local lease_end = #value >= 16 and struct.unpack('<d', value, 9)
  return not lease_end or not (lease_end > now_ms - CLAIM_KEPT_MS)
end

-- A queue with priorities ranks what waited before it had any.
local is_ranked = (which == 'locators' or which == 'headers') and redis.call('HGET', keys.control, 'ranked') and has_ranks()
local fresh = {}
local function rank_if_fresh(token, value)
  local job
  if which == 'locators' then
    job = read_locator(value)
    if job.format == 0 then return end
  else
    local due = tonumber(redis.call('ZSCORE', keys.retries, token) or redis.call('ZSCORE', keys.returned, token) or nil)
    if not due then return end
    job = read_job(value) or { start = due, tail = '' }
    -- What is due again keeps its place.
    job.start = due > now_ms and due or math.min(job.start, due)
  end
  -- A small hash comes in one piece.
  if #fresh < 2000 and not redis.call('ZSCORE', keys.ranked, token) then
    job.token = token
    fresh[#fresh + 1] = job
  end
end

local part = redis.call('HSCAN', keys.swept, args.cursor, 'COUNT', args.count)
local over = {}
for i = 1, #part[2], 2 do
  if is_over(part[2][i], part[2][i + 1]) then
    over[#over + 1] = { part[2][i], part[2][i + 1] }
  elseif is_ranked then
    rank_if_fresh(part[2][i], part[2][i + 1])
  end
end
for _, item in ipairs(over) do
  if which == 'locators' then
    forget(item[1], read_locator(item[2]))
  elseif which == 'headers' or which == 'errors' then
    local token = token_in(item[1])
    local job = job_of(token)
    if job then release_unique(keys.unique, job.tail, token) end
    redis.call('HDEL', keys.headers, token)
    redis.call('HDEL', keys.payloads, token)
    forget_errors(keys.errors, { token })
  else
    redis.call('HDEL', keys.swept, item[1])
  end
end
add_ranks(fresh, true, function(job) return job.start end)
return { part[1], #over + #fresh }
