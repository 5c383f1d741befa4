-- Lease what is waiting, up to a number and a size: expired leases, due retries, due jobs that were returned before
-- their first attempt, what others put into the destination queue, due frames.
--
-- Prelude  clock, count, window, frame, list, job, unique, service, transfer, held, pause, limit, batch, ended
-- Keys     timeout_set, delay_queue, destination, leases, retries, headers, payloads, locators, notes, unique,
--          ended, counters, claims, dead, quarantine, errors, returned, control, channel, ranked, held?limits,
--          held_tasks?limits, slots?limits, paces?limits, batches?limits, last_ended?
-- Where    held to batches: only if there are limits, or a job is in a batch; last_ended: only if the queue remembers the jobs that ended last
-- Args     owner: 8 bytes: the process that asks
--          request: 8 random bytes: the fencing token of every lease given; its repeat returns the same leases
--          limit: jobs; 0: only transfer
--          budget: bytes
--          lease_ms: how long a lease lasts
--          mode: what to do with due frames: 'direct' leases them, 'shared' transfers them, 'take' leaves them alone
--          transfer_limit: most frames to transfer
--          max_kills: leases that may expire before a job is a dead letter; -1: any number
--          seed: 16 random characters: how tokens begin of elements that a script cannot recognise as jobs; behind them
--            'l' for an element that lay in the destination queue, 'f' for one that came in a frame
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
--          read_format: the format that the caller reads; if the queue's is later, the caller gets its number and no job
--          safe_kills: leases that may expire before a job is a suspect; -1: any number
--          suspects: suspects to lease, 0 or 1; the others are put off
--          put_off_ms: how long to put them off, ms
--          priority_step_ms: on a queue with priorities, for how long a job waits until it comes before those of one point more (ms); empty:
--            the highest priority comes first, however long others wait
--          limit_text?limits: limits of the queue as the settings have them, as JSON; empty: none. Only if there are limits
--          has_declared?limits: 1: the owner has said, by declare.lua, which limits its code has. Only if there are limits
-- Reply    now_us: the present time
--          wait_us: until the next event, 0 if more waits now, -1 if nothing waits
--          transferred: frames
--          doubles: payloads dropped as double
--          vanished: jobs dropped whose payload is gone
--          put_off: suspects
--          newer_format: the format of the queue, if it is too late for the caller: then nothing was claimed; else 0
--          paused: the pause of the queue, as it is stored, nil if there is none. While the queue is paused, nothing is leased
--          paused_tasks: those of its tasks, likewise
--          limited: the sum of 1 if the limits of the queue hold jobs back, 2 if a job has a limit or is in a batch, 4 if there is a
--            limit to the leases of the queue
--          dropped: how many jobs were cancelled as their limits were full
--          ends...: jobs that this claim itself has ended, for the caller to report; nil if there are none. Four values a job:
--            token, 'cancelled' or 'quarantined', the task that the payload names, or empty, and why
--          limits...: for each job with a limit that limit, empty if a worker has just given it to the job; nil if none has one
--          *jobs (token, attempts, kills, start_ms, payload, flags): attempts that failed; leases that expired; flags is the sum of 1 if the token is not the payload's own, 2 if the job was given back because its lease had ended before
--            it began, 4 if the job of the payload's own token ended a moment ago, 8 if the job has a limit, and 16 times the ms
--            from its start time to when it could last begin: the end of a hold, a wait or a lease; a repeat does not know it
-- Returns  nil instead, if the caller has to say that there are limits, or has to say again which its code has, as that is
--          forgotten: then nothing was done

local now_us = read_clock()
local limit, budget, lease_ms = math.min(tonumber(args.limit), MOST), tonumber(args.budget), tonumber(args.lease_ms)
local format, suspects = args.format, tonumber(args.suspects)
local now_ms = math.floor(now_us / 1000)

local fields = redis.call('HMGET', keys.control, 'format', 'service', 'paused', 'paused_tasks', 'ranked', 'queue_limit', 'held_till')
-- A caller would misread a later format than it knows.
if (tonumber(fields[1] or 0) or 0) > tonumber(args.read_format) then
  return { now_us, -1, 0, 0, 0, 0, tonumber(fields[1]), false, false, 0, 0, false, false }
end

-- Before anything is leased, so that this claim knows of a gap.
local service = unpack_service(fields[2])
local served = serve(service, keys.leases, now_ms, lease_ms, false)
service = served or service

local held_till = held_until(fields[7], now_ms)
-- Who takes from the destination queue is no worker, and goes on.
if args.mode == 'take' then fields[3], fields[4] = false, false end
local paused_till
if fields[3] or fields[4] then
  paused_till = fields[3] and pause_till(decode_table(fields[3]), now_ms)
  if fields[3] and not paused_till then
    -- It has ended by itself. While it is stored, claim_few.lua does nothing.
    redis.call('HDEL', keys.control, 'paused')
    held_till = math.max(held_till, math.min(tonumber(decode_table(fields[3]).till) or 0, now_ms))
    redis.call('HSET', keys.control, 'held_till', decimal(held_till))
    fields[3] = false
  end
  if paused_till then limit = 0 end
end

-- How many jobs the caller asks for; what the limits of the queue are, if it has any; tokens and limits of leases that
-- were over; what becomes of jobs that have a limit; what to tell of limits.
local asked, throttle, left, back, told = limit, nil, {}, nil, 0
if fields[6] and not keys.slots and args.mode ~= 'take' then return nil end
if keys.slots and (args.limit_text ~= '' or fields[6]) and args.mode ~= 'take' and limit > 0 then
  -- Part  throttle  if slots
end

-- Only a queue of which workers claim directly has priorities.
local is_ranked = args.mode == 'direct' and fields[5]
if is_ranked then check_sets(keys.ranked) end
-- finish() fills in the first 13.
local reply = { 0, 0, 0, 0, 0, 0, 0, false, false, 0, 0, false, false }
-- The jobs to lease, their number and bytes; the payload of every job met, by token.
local leased, count, byte_count, seen = {}, 0, 0, {}
-- Room that due frames fill which are chosen already; how many jobs were chosen by rank, in whose order they go.
local reserved, turn = 0, 0
-- Tokens by the set that they leave; among these, jobs without a payload and their tails; jobs out of kills;
-- suspects put off.
local expired, retried, returned, vanished, vanished_tails, buried, put_off = {}, {}, {}, {}, {}, {}, {}
-- Attempts that a kill has ended: token, when it was claimed, owner.
local killed = {}
-- How many elements leave the destination queue; jobs among them that a note moves or cancels.
local popped, moved, cancelled = 0, {}, {}
-- Jobs that wait for the end of another; those that have ended, for their batches.
local behind, over = {}, {}
-- Due frames, as find_due() returns them; those that are leased or put aside; among these, those that nobody can
-- unpack.
local due, frames, bad = {}, {}, {}
-- Tokens that leave the ranks, and scores and tokens in turn of those that are ranked anew.
local unranked, reranked = {}, {}
-- Tokens whose locators go; how many payloads are dropped; how many frames are transferred.
local gone, doubles, transferred = {}, 0, 0
-- What this claim ends and nobody else tells of, four elements each: token, outcome, task, why.
local ends = {}
-- For each job that is handed out and has a limit: that limit, as in its tail.
local known_limits = {}

local function note_end(token, outcome, payload, why)
  local n = #ends
  ends[n + 1], ends[n + 2], ends[n + 3], ends[n + 4] = token, outcome, task_in(payload), why or ''
end

-- Part  leases
-- Part  next_event

-- When the last job with a rank has gone, or the queue is shared now, the queue has no priorities any more.
local function end_ranks()
  if not fields[5] or args.mode == 'take' then return end
  if args.mode == 'shared' then redis.call('UNLINK', keys.ranked) end
  if redis.call('ZCARD', keys.ranked) == 0 then redis.call('HDEL', keys.control, 'ranked') end
end

-- A repeat: the first reply was lost. The leases given then end together, and carry the same fencing token.
local last = redis.call('HGET', keys.claims, args.owner) or ''
if last:sub(1, 8) == args.request then
  local till = #last >= 16 and decimal(struct.unpack('<d', last, 9)) or '0'
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', keys.leases, till, till)) do
    local job = job_of(token)
    job = job and job.fence == args.request and job
    local payload = job and redis.call('HGET', keys.payloads, token)
    if payload then
      job.payload, job.flags = payload, (token_of(payload) ~= token and 1 or 0) + (last:find(token, 17, true) and 2 or 0)
      hand_out(job)
      if job.tail ~= '' then tell_of(job.tail) end
    end
  end
  local at = last:find('\0', 17, true)
  if at then ends = cmsgpack.unpack(last:sub(at + 1)) end
  return finish()
end

-- Reads. Nothing is written before everything is read.

if limit > 0 then
  -- Part  take_up
  if is_ranked then
    -- In a function of its own, as a Lua function has 200 locals at most. So are the parts about limits.
    (function()
      -- Part  ranked
    end)()
  end
end
local waiting = redis.call('LLEN', keys.destination)
if waiting > 0 then
  -- Part  popped
end
reserved = 0
if args.mode == 'direct' and (#due > 0 or not is_full()) then
  -- Part  due
elseif args.mode == 'shared' then
  due = find_due(keys.timeout_set, keys.delay_queue, now_ms, math.min(tonumber(args.transfer_limit), MOST), budget)
  transferred = #due
end

if is_ranked then
  for i, job in ipairs(leased) do job.place = i end
  table.sort(leased, function(a, b)
    if a.turn ~= b.turn then return a.turn < b.turn end
    return a.place < b.place
  end)
end
if count == 0 and popped == 0 and #due == 0 and #unranked + #reranked == 0 and #expired + #retried + #returned == 0 then
  -- The destination queue is empty, so Java took whatever the notes were about.
  if waiting == 0 and redis.call('HLEN', keys.notes) > 0 then redis.call('UNLINK', keys.notes) end
  if served then write_service(keys.control, keys.leases, served) end
  end_ranks()
  return finish()
end

-- Only a job whose tail says so has a limit, or is in a batch.
if told > 0 and not keys.slots then return nil end
if told > 0 and args.has_declared == '1' and redis.call('HEXISTS', keys.control, 'code:' .. args.owner) == 0 then return nil end
if told > 0 then
  (function()
    -- Part  admit  if slots
  end)()
end

-- Check the types of keys that were not read. Leases were read wherever this script writes them; the counters are read
-- before any job is touched.

if count > 0 and not served then served = serve(service, keys.leases, now_ms, lease_ms, true) end
check_hashes(keys.headers, keys.payloads, keys.unique)
check_sets(keys.ended)
local has_notes = redis.call('HLEN', keys.notes) > 0
if popped > 0 then check_hashes(keys.locators) end
if #bad + #buried + #vanished + #killed > 0 then
  check_hashes(keys.errors)
  check_sets(keys.quarantine, keys.dead)
end
if #moved + #behind > 0 then check_sets(keys.returned, keys.ranked) end
if #put_off > 0 then check_sets(keys.retries, keys.ranked) end
if keys.batches then check_batches() end

-- Writes. Removals first, which a full server does not refuse.

if served then write_service(keys.control, keys.leases, served) end
redis.call('HDEL', keys.claims, args.owner)
sweep_tombstones(keys.delay_queue, keys.counters)
if #frames > 0 then
  local plan = locate_listed(keys.delay_queue, frames, keys.counters, known_indexes(due))
  redis.call('ZREM', keys.timeout_set, unpack(frames))
  unlist(keys.delay_queue, keys.counters, plan)
elseif args.mode == 'shared' then
  local plan = plan_transfer(keys.timeout_set, keys.delay_queue, keys.locators, keys.counters, due, format)
  transfer_due(plan, now_ms, args.seed)
  for i in ipairs(plan.bad) do note_end(args.seed .. string.format('q%05d', i), 'quarantined', nil, 'nobody can read its frame') end
end
if popped > 0 then redis.call('LTRIM', keys.destination, popped, -1) end
if #gone > 0 then
  redis.call('HDEL', keys.locators, unpack(gone))
  if has_notes then redis.call('HDEL', keys.notes, unpack(gone)) end
end
if #expired > 0 then redis.call('ZREM', keys.leases, unpack(expired)) end
if #retried > 0 then redis.call('ZREM', keys.retries, unpack(retried)) end
if #returned > 0 then redis.call('ZREM', keys.returned, unpack(returned)) end
if #vanished > 0 then
  redis.call('HDEL', keys.headers, unpack(vanished))
  forget_errors(keys.errors, vanished)
  for i, token in ipairs(vanished) do
    release_unique(keys.unique, vanished_tails[i], token)
    over[#over + 1] = { tail = vanished_tails[i] }
  end
end
if #unranked > 0 then redis.call('ZREM', keys.ranked, unpack(unranked)) end
if #reranked > 0 then redis.call('ZADD', keys.ranked, unpack(reranked)) end
for _, kill in ipairs(killed) do
  add_attempt(keys.errors, kill[1], cjson.encode({ kind = 'killed', began = kill[2], at = now_ms,
    worker = kill[3]:gsub('.', function(byte) return string.format('%02x', byte:byte()) end),
    error = 'its worker died or lost the lease' }))
end
for i, frame in ipairs(bad) do
  quarantine_frame(keys.quarantine, keys.payloads, keys.errors, keys.counters, now_ms,
    args.seed .. string.format('b%05d', i), frame)
  note_end(args.seed .. string.format('b%05d', i), 'quarantined', nil, 'nobody can read its frame')
end
if back then
  (function()
    -- Part  hold_back  if slots
  end)()
end
if count > 0 then
  -- Part  lease_all
  if throttle and throttle.interval then
    throttle.pace = throttle.pace + count * throttle.interval
    redis.call('HSET', keys.control, 'pace', string.format('%.2f', throttle.pace))
  end
end
if #put_off > 0 then
  -- Part  put_off
end
-- Part  not_leased
if #ends > 0 then
  -- A repeat tells of them again. Behind the first zero, so that nothing there is taken for the token of a late job.
  local kept = redis.call('HGET', keys.claims, args.owner) or args.request .. struct.pack('<d', now_ms + lease_ms)
  redis.call('HSET', keys.claims, args.owner, kept .. '\0' .. cmsgpack.pack(ends))
end
if #vanished > 0 then add_to(keys.counters, 'vanished', #vanished) end
if doubles > 0 then add_to(keys.counters, 'doubles', doubles) end
end_ranks()
if keys.batches then leave_batches(over, now_us) end
if #retried + #put_off > 0 then firsts[keys.retries] = nil end
-- The last job of a batch that is over lets its callback go on, among the returned.
if #returned + #moved + #behind + #over > 0 then firsts[keys.returned] = nil end
return finish()
