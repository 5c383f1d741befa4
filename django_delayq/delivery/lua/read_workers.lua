-- Read what the processes of workers say of themselves.
--
-- Prelude  clock
-- Keys     workers, workers_seen
-- Args     now_us: epoch us; empty: the server's TIME (tests pass their own)
--          kept_ms: how long a silent process is kept (ms)
--          first: how many to leave out
--          count: how many to read
-- Returns  now, epoch ms; how many there are; then three each: id, when it was last seen, what it says of itself

local now_ms, kept_ms = math.floor(read_clock(args.now_us) / 1000), tonumber(args.kept_ms)
local from, till = decimal(now_ms - kept_ms), decimal(now_ms + kept_ms)
local found = redis.call('ZRANGEBYSCORE', keys.workers_seen, from, till, 'WITHSCORES', 'LIMIT', args.first, args.count)
local reply = { now_ms, redis.call('ZCOUNT', keys.workers_seen, from, till) }
for i = 1, #found, 2 do
  local said = redis.call('HGET', keys.workers, found[i])
  if said then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
    reply[#reply + 1] = said
  end
end
return reply
