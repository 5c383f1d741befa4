-- Delete what has been among the dead letters, or in quarantine, for too long: a stretch at a time, the oldest first.
--
-- Prelude  clock, window, frame, job
-- Keys     graves, headers, payloads, errors, ended
-- Where    graves: dead or quarantine
-- Args     age_ms: younger ones stay
--          kept: how many stay, however old
--          which: 'all', 'jobs', or 'foreign': payloads that are no jobs of ours
--          first: first rank to look at
--          batch: elements to look at
--          budget: bytes of payload to look at
-- Reply    deleted: how many were deleted
--          left: how many are left
--          next_rank: the rank to go on with, or -1 at the end
--          oldest_ms: when the oldest deleted one had been put there, or -1

local now_ms, kept, which = math.floor(read_clock() / 1000), tonumber(args.kept), args.which
local first, batch, budget = tonumber(args.first), math.min(tonumber(args.batch), 2000), tonumber(args.budget)
local last_ms = now_ms - tonumber(args.age_ms)

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
