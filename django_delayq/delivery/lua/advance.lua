-- Move a schedule on from an occurrence: store the job of the next one, or the jobs of several that were missed. Whoever
-- comes second changes nothing, so it is safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, new, schedules
-- Keys     schedules, periods, timeout_set, delay_queue, redisson_channel, locators, unique, counters, ended, ranked, control
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  frame format, 1 (dLc0) or 2 (Bc0Lc0)
-- ARGV[3]  1: the frames also go into the delay queue
-- ARGV[4]  name of the schedule
-- ARGV[5]  fingerprint of the definition that the caller goes by
-- ARGV[6]  the occurrence that the caller has seen, epoch ms
-- ARGV[7]  the next occurrence, whose job is the last of these; empty: there is none, and no job of it
-- ARGV[8]  how many jobs of missed occurrences were stored in a row, with these
-- ARGV[9]  the last occurrence that has come by now, epoch ms
-- ARGV[10]  and on, four a job: token; wait ('=' epoch ms); tail; payload
-- Returns  the version of the definitions; the occurrence that is stored now, or ''; 1 if this call has moved it, 2 if it has
--          and did not store the last job, as that occurrence has had one; how many missed occurrences were caught up with in a
--          row; then, if an ACL closes the channel to us, the server's error

-- So many are caught up with in a row. The same as in jobs/schedules.py.
local MOST_BEHIND = 1000

local now_us, format, listed, name = read_clock(ARGV[1]), ARGV[2], ARGV[3] == '1', ARGV[4]
local now_ms = math.floor(now_us / 1000)

local version, occurrence, state = read_version(), occurrence_of(name), read_state(name)
if not occurrence or occurrence ~= tonumber(ARGV[6]) or state.print ~= ARGV[5] then
  return { version, occurrence and decimal(occurrence) or '', 0, state.behind or '0' }
end
-- Of the next occurrence, the job may have run already.
local early = read_early(state)
local is_early = ARGV[7] ~= '' and early[tonumber(ARGV[7])] or false
local places, starts, tokens = {}, {}, {}
-- Missed occurrences would all start now, and a limit would hold their jobs in the order of their tokens. So each starts 1 ms
-- after the one before, in the second before now.
local behind, start_ms = math.min(number_in(state.behind) or 0, MOST_BEHIND), math.ceil(now_us / 1000)
local late_ms = (behind > 0 or #ARGV > 13) and start_ms - MOST_BEHIND + behind or start_ms - 1
for i = 10, #ARGV - (is_early and 7 or 3), 4 do
  local n, start = #places + 1, start_time(ARGV[i + 1], now_us)
  if start <= start_ms then
    late_ms = math.min(late_ms + 1, start)
    start = late_ms
  end
  places[n], starts[n], tokens[n] = i, start, ARGV[i]
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
if ARGV[7] ~= '' then redis.call('ZADD', keys.periods, ARGV[7], name) end
state.fired, state.behind = ARGV[9], ARGV[8]
state.token = ARGV[7] ~= '' and not is_early and tokens[#tokens] or ''
note_early(state, early, tonumber(ARGV[9]))
write_state(name, state)
return { version, ARGV[7], is_early and 2 or 1, ARGV[8], refusal }
