-- Read what tasks had of all times before the first figures of some days, and what they have now.
--
-- Prelude  clock
-- Keys     hours, totals
-- Args     days_kept: days that are kept
--          count: how many to read, the present one included
-- Reply    before: what they had, see features/statistics/calls.py
--          now...: what they have, as field, value, …; nothing if these days have no figures

local today, days_kept = math.floor(read_clock() / 86400000000), tonumber(args.days_kept)
for day = today - tonumber(args.count) + 1, today do
  local found = redis.call('HGET', keys.hours, 'day:' .. decimal(day % days_kept))
  if found and found:sub(1, 4) == struct.pack('>I4', day) then return { found, redis.call('HGETALL', keys.totals) } end
end
return { '', {} }
