-- Move a schedule on from an occurrence: store the job of the next one, or the jobs of several that were missed. Whoever
-- comes second changes nothing, so it is safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, new, schedules
-- Keys     schedules, periods, timeout_set, delay_queue, redisson_channel, locators, unique, counters, ended, ranked, control
-- Args     format: frame format, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: the frames also go into the delay queue
--          name: name of the schedule
--          print: fingerprint of the definition that the caller goes by
--          seen_ms: the occurrence that the caller has seen, epoch ms
--          next_ms: the next occurrence, whose job is the last of these; empty: there is none, and no job of it
--          behind: how many jobs of missed occurrences were stored in a row, with these
--          fired_ms: the last occurrence that has come by now, epoch ms
--          jobs... (token, when, tail, payload): token; wait ('=' epoch ms); tail; payload
-- Reply    version: the version of the definitions
--          occurrence: the one that is stored now, or ''
--          moved: 1 if this call has moved it, 2 if it has and did not store the last job, as that occurrence has had one; else 0
--          behind: how many missed occurrences were caught up with in a row
--          refusal: the server's error if an ACL closes the channel to us, else ''

-- So many are caught up with in a row. The same as in features/schedules/api.py.
local MOST_BEHIND = 1000

local now_us, format, listed, name = read_clock(), args.format, args.listed == '1', args.name
local now_ms = math.floor(now_us / 1000)

local version, occurrence, state = read_version(), occurrence_of(name), read_state(name)
if not occurrence or occurrence ~= tonumber(args.seen_ms) or state.print ~= args.print then
  return { version, occurrence and decimal(occurrence) or '', 0, state.behind or '0', '' }
end
-- Of the next occurrence, the job may have run already.
local early = read_early(state)
local is_early = args.next_ms ~= '' and early[tonumber(args.next_ms)] or false
local places, starts, tokens = {}, {}, {}
-- Missed occurrences would all start now, and a limit would hold their jobs in the order of their tokens. So each starts 1 ms
-- after the one before, in the second before now.
local behind, start_ms = math.min(number_in(state.behind) or 0, MOST_BEHIND), math.ceil(now_us / 1000)
local late_ms = (behind > 0 or #ARGV > args.jobs + #args.jobs) and start_ms - MOST_BEHIND + behind or start_ms - 1
for i = args.jobs, #ARGV - (is_early and #args.jobs or 0), #args.jobs do
  local n, start = #places + 1, start_time(args.jobs[i].when, now_us)
  if start <= start_ms then
    late_ms = math.min(late_ms + 1, start)
    start = late_ms
  end
  places[n], starts[n], tokens[n] = i, start, args.jobs[i].token
end
local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
head = head and tonumber(head) or math.huge
redis.call('LLEN', keys.delay_queue)
check_hashes(keys.locators, keys.unique, keys.counters)
check_sets(keys.ended)
local is_ranked = has_ranks()

-- A removal is first, so that schedules go on while the server is full.
redis.call('ZREM', keys.periods, name)
local refusal
if #places > 0 then
  -- A clock that has been set back since may have seen these occurrences: a claim would take their jobs for copies.
  redis.call('ZREM', keys.ended, unpack(tokens))
  local first = store_new(places, starts, format, listed, now_ms, is_ranked)
  if first < head then refusal = publish(keys.redisson_channel, first) end
end
if args.next_ms ~= '' then redis.call('ZADD', keys.periods, args.next_ms, name) end
state.fired, state.behind = args.fired_ms, args.behind
state.token = args.next_ms ~= '' and not is_early and tokens[#tokens] or ''
note_early(state, early, tonumber(args.fired_ms))
write_state(name, state)
return { version, args.next_ms, is_early and 2 or 1, args.behind, refusal or '' }
