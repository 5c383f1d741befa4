-- Prelude: when a queue was last served, and which leases are over. docs/internals.md, "Outages and clocks".
--
-- Needs _clock. A lease measures its worker, not the server: while nobody was served, nobody could renew. The record
-- (hash field 'service') is eight f64, little-endian, times in epoch ms:
--   last served | the last gap: served last before it; until when leases that ended in it are spared; how many gaps in
--   a row have spared them | shortest lease in force (ms); until when | longest lease in force (ms); until when
-- Scripts write it when they give or renew a lease, and claims also while there are leases.

local SERVICE = '<dddddddd'
-- Renewals come every third of a lease. A queue that was not served for this part of its shortest lease has a gap, and
-- leases that ended in a gap are spared for this part of the longest lease: a third, and room for a slow machine.
local PATIENCE = 5 / 12
-- How old the record may become before it is written again, as a part of the shortest lease.
local STALE = 1 / 30
-- How many gaps in a row, without a renewal, spare what ended in the first of them. If nobody works on a queue and
-- somebody looks at it now and then, each look ends a gap: without this bound, what a dead worker held would never be
-- free.
local MOST_GAPS = 3
-- How many leases one call cuts.
local CUT = 500

local function unpack_service(packed)
  if not packed or #packed ~= 64 then return nil end
  local s = {}
  s.at, s.from, s.till, s.gaps, s.shortest, s.shortest_till, s.longest, s.longest_till = struct.unpack(SERVICE, packed)
  return s
end

local function read_service(control)
  return unpack_service(redis.call('HGET', control, 'service'))
end

-- Whether the record needs no update now that the queue is served.
-- is_leasing: a lease of this length is given or renewed.
local function is_current(s, now_ms, lease_ms, is_leasing)
  local since = now_ms - s.at
  if since < -s.shortest * PATIENCE or since > s.shortest * STALE then return false end
  return not is_leasing or lease_ms >= s.shortest and lease_ms <= s.longest
    and not (lease_ms == s.shortest and now_ms + lease_ms - s.shortest_till > lease_ms * STALE)
    and not (lease_ms == s.longest and now_ms + lease_ms - s.longest_till > lease_ms * STALE)
end

-- Returns the record to write because the queue is served now, with the leases to cut; nil: the old record will do.
-- is_leasing: this call gives or renews a lease; is_renewing: it renews one.
local function serve(s, leases, now_ms, lease_ms, is_leasing, is_renewing)
  local since, patience = 0, 0
  -- A worker renews every third of its lease. If a shorter lease makes that a gap, each renewal sees a gap and says
  -- nothing of the next: if it reset the count, what a dead worker held would never be free.
  local is_steady = is_renewing and not (s and lease_ms / 3 > s.shortest * PATIENCE)
  if s then
    since, patience = now_ms - s.at, s.shortest * PATIENCE
    if is_current(s, now_ms, lease_ms, is_leasing) and not (is_steady and s.gaps > 0) then return nil end
  end
  local is_held = redis.call('ZCARD', leases) > 0
  if not is_held and not is_leasing then return nil end
  local new = { at = now_ms, from = 0, till = 0, gaps = 0, cut = {} }
  if s and since >= -patience then new.from, new.till, new.gaps = s.from, s.till, s.gaps end
  local is_back = since < -patience
  if is_held and (since > patience or is_back) then
    new.from, new.gaps = math.min(s.at, now_ms), 1
    if s.at < s.till and s.gaps < MOST_GAPS then
      -- This gap began before the leases that the last gap spared had had their time.
      new.from, new.gaps = math.min(new.from, s.from), s.gaps + 1
    end
    new.till = now_ms + s.longest * PATIENCE
  end
  -- Somebody works on this queue and looks at it often, so only an outage makes the next gap.
  if is_steady then new.gaps = 0 end
  new.shortest, new.shortest_till = lease_ms, now_ms + lease_ms
  new.longest, new.longest_till = lease_ms, now_ms + lease_ms
  if s and not is_back then
    if lease_ms > s.shortest and now_ms <= s.shortest_till then
      new.shortest, new.shortest_till = s.shortest, s.shortest_till
    end
    if lease_ms < s.longest and now_ms <= s.longest_till then
      new.longest, new.longest_till = s.longest, s.longest_till
    end
  elseif s then
    -- The leases in force last as long by the new clock.
    if lease_ms > s.shortest then new.shortest, new.shortest_till = s.shortest, now_ms + s.shortest end
    if lease_ms < s.longest then new.longest, new.longest_till = s.longest, now_ms + s.longest end
  end
  if is_held and (is_back or not s) then
    -- The clock was set back, or that of a new server is behind: a dead worker's lease would last until it catches up.
    local latest = now_ms + new.longest
    new.cut = redis.call('ZRANGEBYSCORE', leases, '(' .. decimal(latest), '+inf', 'LIMIT', 0, CUT)
    new.latest = latest
  end
  return new
end

-- Returns the time by which leases are over: those that ended at it or before it.
local function over_by(s, now_ms)
  if s and now_ms < s.till then return math.min(now_ms, s.from) end
  return now_ms
end

-- Whether a lease ended while nobody could renew it: its worker may live.
local function is_spared(s, lease_end)
  return s ~= nil and lease_end > s.from and lease_end <= s.till
end

local function write_service(control, leases, new)
  -- The first write is a command that a full server does not refuse.
  redis.call('HDEL', control, '')
  if #new.cut > 0 then
    local ends = {}
    for i, token in ipairs(new.cut) do ends[2 * i - 1], ends[2 * i] = new.latest, token end
    redis.call('ZADD', leases, 'XX', unpack(ends))
    -- The old record stays until all are cut.
    if #new.cut == CUT then return end
  end
  redis.call('HSET', control, 'service', struct.pack(SERVICE, new.at, new.from, new.till, new.gaps,
    new.shortest, new.shortest_till, new.longest, new.longest_till))
end
