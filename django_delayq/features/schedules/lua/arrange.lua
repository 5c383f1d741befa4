-- Change what defines a schedule, and replace the job of its next occurrence in the same step.
--
-- Prelude  clock, count, window, frame, list, job, unique, find, held, limit, batch, cancel, new, schedules
-- Keys     schedules, periods, channel, redisson_channel, timeout_set, delay_queue, destination, leases, retries, dead,
--          quarantine, headers, payloads, locators, errors, notes, unique, ended, counters, returned, held, held_tasks,
--          control, ranked, slots, paces, batches
-- Args     format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: the frame also goes into the delay queue
--          name: name of the schedule
--          version: the version of the definitions that the caller has read
--          request: id of the call: a repeat with the same changes nothing
--          code: definition in code; empty: it goes; '=': it stays
--          stored: stored definition, likewise
--          change: likewise
--          register: register of the queue; '=': it stays
--          print: fingerprint of what all of them make; empty: nothing
--          next_ms: the next occurrence, epoch ms; empty: there is none; '=': it stays, and so does its job
--          before: of a schedule that comes from another queue, its state there; else empty
--          job... (token, when, tail, payload): the job of that occurrence, as four: token; wait ('=' epoch ms); tail; payload
-- Returns  the new version of the definitions, or 0 if another process has changed one or an occurrence has come:
--          then the script changes nothing; and, if an ACL closes a channel to us, the server's error

local now_us, format, listed, name = read_clock(), args.format, args.listed == '1', args.name
local now_ms, request, next_ms = math.floor(now_us / 1000), args.request, tonumber(args.next_ms)
local is_kept, place, before = args.next_ms == '=', args.job, decode_state(args.before)

local version, occurrence, state = read_version(), occurrence_of(name), read_state(name)
if how_ended(keys.ended, now_ms, request) then return version end
if version ~= (tonumber(args.version) or 0) then return 0 end
local waiting = not is_kept and state.token and state.token ~= '' and find_job(state.token, now_ms)
-- The job of an occurrence that has come runs, whatever the schedule is from now on, even if it waits for its random start.
local has_come = not is_kept and occurrence and occurrence <= now_ms
local is_replaced = waiting and not has_come and waiting.state == 'scheduled'
-- The token of an occurrence's job is always the same. The job may wait without a state that says so, or have been cancelled
-- by a change that is taken back now; and one that was run early is the job of its occurrence.
local own = next_ms and find_job(args.job[place].token, now_ms)
local early = read_early(state, read_early(before))
if occurrence and not has_come and waiting and not is_replaced then early[occurrence] = true end
local is_new = own and not early[next_ms]
  and (own.state == 'scheduled' or own.state == 'cancelled' or own.state == 'missing')
local fired = math.max(fired_by(state, now_ms), fired_by(before, now_ms))
if has_come then fired = math.max(fired, occurrence) end
if next_ms and next_ms <= fired then return 0 end
local start = next_ms and start_time(args.job[place].when, now_us)
-- An occurrence that a schedule from another queue has missed: those after it start in the second before now.
if start and args.before ~= '' and start <= math.ceil(now_us / 1000) then start = next_ms end
local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
redis.call('LLEN', keys.delay_queue)
check_hashes(keys.locators, keys.unique, keys.counters, keys.payloads, keys.errors)
check_sets(keys.ended, keys.held_tasks)
local is_ranked = has_ranks()

-- A removal is first, which a full server does not refuse.
redis.call('HDEL', keys.schedules, '')
local replaced, tokens = { is_replaced and waiting or nil }, { is_replaced and state.token or nil }
if own and own.state == 'scheduled' and tokens[1] ~= args.job[place].token then
  replaced[#replaced + 1], tokens[#tokens + 1] = own, args.job[place].token
end
if #tokens > 0 then cancel_found(replaced, tokens, now_ms) end
-- Else a claim would take the new job for a copy of the one that was cancelled.
if is_new then redis.call('ZREM', keys.ended, args.job[place].token) end
if not is_kept then redis.call('ZREM', keys.periods, name) end
for field, value in pairs({ ['code '] = args.code, ['stored '] = args.stored, ['change '] = args.change }) do
  if value == '' then
    redis.call('HDEL', keys.schedules, field .. name)
  elseif value ~= '=' then
    redis.call('HSET', keys.schedules, field .. name, value)
  end
end
if args.register ~= '=' then redis.call('HSET', keys.schedules, 'register ' .. args.register:sub(1, 4), args.register) end
local refusal
if next_ms then redis.call('ZADD', keys.periods, args.next_ms, name) end
if is_new then
  store_new({ place }, { start }, format, listed, now_ms, is_ranked)
  if start < (head and tonumber(head) or math.huge) then refusal = publish(keys.redisson_channel, start) end
end
if args.print == '' then
  redis.call('HDEL', keys.schedules, 'state ' .. name)
else
  if not is_kept then
    state.token, state.behind = own and (is_new or own.state ~= 'missing') and args.job[place].token or '', '0'
    state.fired = fired > 0 and decimal(fired) or nil
    note_early(state, early, now_ms)
  end
  state.print = args.print
  write_state(name, state)
end
version = math.max(version + 1, math.floor(now_us))
redis.call('HSET', keys.schedules, 'version', decimal(version))
remember(keys.ended, now_ms, 'taken', { request })
refusal = publish(keys.channel, 0) or refusal
return refusal and { version, refusal } or version
