-- Delete dead letters or quarantined payloads for good. Safe to repeat.
--
-- Prelude  clock, window, frame, job
-- Keys     graves, headers, payloads, errors, ended
-- Where    graves: dead or quarantine
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  request: some random characters, the same when the call is repeated
-- ARGV[3]  and on: tokens
-- Returns  how many were there

local now_ms, request, discarded, notes = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2], {}, {}

-- A repeat: the first reply was lost. What that call did is noted beside the jobs that ended, for as long.
local done = noted(keys.ended, request, #ARGV - 2)
if done > 0 then return done end

check_hashes(keys.headers, keys.payloads, keys.errors)
for i = 3, #ARGV do
  if redis.call('ZREM', keys.graves, ARGV[i]) == 1 then
    redis.call('HDEL', keys.headers, ARGV[i])
    redis.call('HDEL', keys.payloads, ARGV[i])
    forget_errors(keys.errors, { ARGV[i] })
    discarded[#discarded + 1] = ARGV[i]
    notes[#notes + 1] = request .. '-' .. #discarded
  end
end
remember(keys.ended, now_ms, 'discarded', discarded)
remember(keys.ended, now_ms, 'taken', notes)
return #discarded
