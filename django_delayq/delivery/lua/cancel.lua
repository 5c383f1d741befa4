-- Cancel jobs that are not running. Those in the delay queue share a scan of it.
--
-- Prelude  clock, count, window, frame, list, job, find, held
-- Keys     timeout_set, delay_queue, destination, leases, retries, dead, quarantine, headers, payloads, locators,
--          errors, notes, unique, ended, counters, returned, held, held_tasks, ranked
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  and on: tokens, all different
-- Returns  for each 'cancelled'; 'noted' if it lies in a long destination queue, and will not run unless Java takes it;
--          or the state in which it was left

local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

-- Reads. One look through the destination queue serves all jobs of a call.
local lying, is_all
local function find_lying(destination, token, locator)
  if not lying then
    lying = {}
    is_all = look_through(destination, function(payload)
      local found, mac = token_of(payload)
      if found and not lying[found .. mac] then lying[found .. mac] = payload end
    end)
  end
  local _, _, _, _, mac = read_locator(locator)
  return lying[token .. mac], is_all
end

local jobs, frames, replies, is_removal = {}, {}, {}, false
for i = 2, #ARGV do
  local job = find_job(ARGV[i], now_ms, #ARGV > 2 and find_lying)
  job.waits = job.waits or (is_given_up(job) and keys.leases)
  if job.frame then frames[#frames + 1] = job.frame end
  is_removal = is_removal or job.frame or job.payload or job.waits
  jobs[i - 1] = job
end
if is_removal then
  redis.call('LLEN', keys.delay_queue)
  check_hashes(keys.payloads, keys.errors, keys.unique, keys.counters)
  check_sets(keys.ended, keys.held_tasks, keys.ranked)
end

-- Writes. Removals first, which a full server does not refuse.
if #frames > 0 then
  redis.call('ZREM', keys.timeout_set, unpack(frames))
  sweep_tombstones(keys.delay_queue, keys.counters)
  unlist(keys.delay_queue, keys.counters, locate_listed(keys.delay_queue, frames, keys.counters))
end
local cancelled = {}
for i, job in ipairs(jobs) do
  local token, tail = ARGV[i + 1], ''
  if job.waits then
    local start, _
    _, _, start, _, _, tail = read_header(job.header)
    local name = job.state == 'held' and read_held(redis.call('HGET', keys.errors, token))
    redis.call('ZREM', job.waits, token)
    if name then redis.call('ZREM', keys.held_tasks, held_member(name, start, token)) end
    redis.call('HDEL', keys.headers, token)
    redis.call('HDEL', keys.payloads, token)
    forget_errors(keys.errors, { token })
  elseif job.frame or job.payload then
    local _
    _, _, _, tail = read_locator(job.locator)
    if job.payload then redis.call('LREM', keys.destination, 1, job.payload) end
    redis.call('HDEL', keys.locators, token)
  elseif job.state == 'unknown' then
    -- Here as well, a removal is first.
    redis.call('HDEL', keys.notes, token)
    redis.call('HSET', keys.notes, token, 'cancel')
    replies[i] = 'noted'
  else
    if job.locator then forget(token, job.locator) end
    replies[i] = job.state
  end
  if not replies[i] then
    release_unique(keys.unique, tail, token)
    cancelled[#cancelled + 1] = token
    replies[i] = 'cancelled'
  end
end
if #cancelled > 0 then
  redis.call('ZREM', keys.ranked, unpack(cancelled))
  remember(keys.ended, now_ms, 'cancelled', cancelled)
  add_to(keys.counters, 'cancelled', #cancelled)
end
return replies
