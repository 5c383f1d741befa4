-- Read a page of what a queue knows of its schedules.
--
-- Prelude  clock
-- Keys     schedules, periods
-- Args     now_us: epoch us; empty: the server's TIME (tests pass their own)
--          cursor: where to go on; 0: at the beginning
--          count: about how many fields to read
-- Returns  now, epoch us; the version of the definitions; where to go on, 0 at the end; then three for each field: its
--          name, its value, and for a state the occurrence whose job waits, epoch ms, else ''

local now_us = read_clock(args.now_us)
local version = redis.call('HGET', keys.schedules, 'version') or '0'
redis.call('ZCARD', keys.periods)
local page = redis.call('HSCAN', keys.schedules, args.cursor, 'COUNT', args.count)
local reply, fields = { now_us, version, page[1] }, page[2]
for i = 1, #fields, 2 do
  local n, name = #reply, fields[i]:match('^state (.*)$')
  reply[n + 1], reply[n + 2] = fields[i], fields[i + 1]
  reply[n + 3] = name and redis.call('ZSCORE', keys.periods, name) or ''
end
return reply
