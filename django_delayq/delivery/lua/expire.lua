-- Delete what has been among the dead letters, or in quarantine, for too long: a stretch at a time, the oldest first.
--
-- Prelude  clock, window, frame, job
-- Keys     graves, headers, payloads, errors, ended
-- Where    graves: dead or quarantine
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  age (ms): what is younger stays
-- ARGV[3]  how many stay, however old
-- ARGV[4]  which: 'all'; 'foreign', what somebody else offered; 'jobs', the rest
-- ARGV[5]  first rank to look at
-- ARGV[6]  elements to look at
-- ARGV[7]  budget, bytes of payload to look at
-- Returns  how many were deleted; how many are left; the rank to go on with, or -1 at the end; when the oldest deleted
--          one had been put there (epoch ms), or -1

local now_ms, kept, which = math.floor(read_clock(ARGV[1]) / 1000), tonumber(ARGV[3]), ARGV[4]
local first, batch, budget = tonumber(ARGV[5]), math.min(tonumber(ARGV[6]), 2000), tonumber(ARGV[7])
local last_ms = now_ms - tonumber(ARGV[2])

check_hashes(keys.headers, keys.payloads, keys.errors)
check_sets(keys.ended)
local length = redis.call('ZCARD', keys.graves)
local part = redis.call('ZRANGE', keys.graves, first, first + batch - 1, 'WITHSCORES')
local over, looked_at, byte_count, oldest, is_end = {}, 0, 0, -1, #part < 2 * batch
for i = 1, #part, 2 do
  local token, score = part[i], tonumber(part[i + 1])
  if score > last_ms or length - #over <= kept then
    is_end = true
    break
  end
  if byte_count >= budget then
    is_end = false
    break
  end
  local is_wanted = which == 'all'
  if not is_wanted then
    local payload = redis.call('HGET', keys.payloads, token) or ''
    byte_count = byte_count + #payload
    is_wanted = (token_of(payload) ~= token) == (which == 'foreign')
  end
  looked_at = looked_at + 1
  if is_wanted then
    over[#over + 1] = token
    if oldest < 0 and is_score(score) then oldest = score end
  end
end
if #over > 0 then
  redis.call('ZREM', keys.graves, unpack(over))
  redis.call('HDEL', keys.headers, unpack(over))
  redis.call('HDEL', keys.payloads, unpack(over))
  forget_errors(keys.errors, over)
  remember(keys.ended, now_ms, 'discarded', over)
end
return { #over, length - #over, is_end and -1 or first + looked_at - #over, oldest }
