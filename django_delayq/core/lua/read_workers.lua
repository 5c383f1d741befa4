-- Read what the processes of workers say of themselves.
--
-- Prelude  clock
-- Keys     workers, workers_seen
-- Args     kept_ms: how long a silent process is kept (ms)
--          first: how many to leave out
--          count: how many to read
-- Reply    now_ms: the present time
--          total: how many there are
--          rows... (id, seen_ms, said): when it was last seen, and what it says of itself

local now_ms, kept_ms = math.floor(read_clock() / 1000), tonumber(args.kept_ms)
local from, till = decimal(now_ms - kept_ms), decimal(now_ms + kept_ms)
local found = redis.call('ZRANGEBYSCORE', keys.workers_seen, from, till, 'WITHSCORES', 'LIMIT', args.first, args.count)
local rows = {}
for i = 1, #found, 2 do
  local said = redis.call('HGET', keys.workers, found[i])
  local n = #rows
  if said then rows[n + 1], rows[n + 2], rows[n + 3] = found[i], found[i + 1], said end
end
return { now_ms, redis.call('ZCOUNT', keys.workers_seen, from, till), rows }
