-- Read the tasks of some hours that are over.
--
-- Keys     hours
-- ARGV[1]  and on: fields, see delivery/statistics.py
-- Returns  of each what is stored; empty: nothing

local found = redis.call('HMGET', keys.hours, unpack(ARGV))
for n = 1, #ARGV do found[n] = found[n] or '' end
return found
