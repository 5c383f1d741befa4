-- Delete dead letters or quarantined payloads for good: they have failed. Safe to repeat.
--
-- Prelude  clock, window, frame, job
-- KEYS[1]  zset  where they are: dead letters or quarantine: token, score when
-- KEYS[2]  hash  headers by token
-- KEYS[3]  hash  payloads by token
-- KEYS[4]  hash  errors by token
-- KEYS[5]  zset  ended: token, score epoch ms * 8 + outcome
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  request: some random characters, the same when the call is repeated
-- ARGV[3]  and on: tokens
-- Returns  how many were there

local graves, headers, payloads, errors, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, request, discarded, notes = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2], {}, {}

-- A repeat: its reply was lost. What it did is noted beside the jobs that ended, for as long.
local done = noted(ended, request, #ARGV - 2)
if done > 0 then return done end

check_hashes(headers, payloads, errors)
for i = 3, #ARGV do
  if redis.call('ZREM', graves, ARGV[i]) == 1 then
    redis.call('HDEL', headers, ARGV[i])
    redis.call('HDEL', payloads, ARGV[i])
    redis.call('HDEL', errors, ARGV[i])
    discarded[#discarded + 1] = ARGV[i]
    notes[#notes + 1] = request .. '-' .. #discarded
  end
end
remember(ended, now_ms, 'failed', discarded)
remember(ended, now_ms, 'taken', notes)
return #discarded
