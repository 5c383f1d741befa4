-- Delete dead letters or quarantined payloads for good. Safe to repeat.
--
-- Prelude  clock, window, frame, job
-- Keys     graves, headers, payloads, errors, ended
-- Where    graves: dead or quarantine
-- Args     request: some random characters, the same when the call is repeated
--          tokens...: of the jobs
-- Returns  how many were there

local now_ms, request, discarded, notes = math.floor(read_clock() / 1000), args.request, {}, {}

-- A repeat: the first reply was lost. What that call did is noted beside the jobs that ended, for as long.
local done = noted(keys.ended, request, #ARGV - args.tokens + 1)
if done > 0 then return done end

check_hashes(keys.headers, keys.payloads, keys.errors)
for i = args.tokens, #ARGV do
  if redis.call('ZREM', keys.graves, args.tokens[i]) == 1 then
    redis.call('HDEL', keys.headers, args.tokens[i])
    redis.call('HDEL', keys.payloads, args.tokens[i])
    forget_errors(keys.errors, { args.tokens[i] })
    discarded[#discarded + 1] = args.tokens[i]
    notes[#notes + 1] = request .. '-' .. #discarded
  end
end
remember(keys.ended, now_ms, 'discarded', discarded)
remember(keys.ended, now_ms, 'taken', notes)
return #discarded
