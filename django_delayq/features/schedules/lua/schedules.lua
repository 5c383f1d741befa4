-- Read a page of what a queue knows of its schedules.
--
-- Prelude  clock
-- Keys     schedules, periods
-- Args     cursor: where to go on; 0: at the beginning
--          count: about how many fields to read
-- Reply    now_us: the present time
--          version: of the definitions
--          cursor: where to go on, 0 at the end
--          fields... (field, value, occurrence): for a state the occurrence whose job waits, epoch ms, else ''

local now_us = read_clock()
local version = redis.call('HGET', keys.schedules, 'version') or '0'
redis.call('ZCARD', keys.periods)
local page = redis.call('HSCAN', keys.schedules, args.cursor, 'COUNT', args.count)
local found, fields = {}, page[2]
for i = 1, #fields, 2 do
  local name = fields[i]:match('^state (.*)$')
  local n = #found
  found[n + 1], found[n + 2] = fields[i], fields[i + 1]
  found[n + 3] = name and redis.call('ZSCORE', keys.periods, name) or ''
end
return { now_us, version, page[1], found }
