-- Say which of some lists is the first that holds something.
--
-- Keys     destination, others...
-- Returns  its place among the keys, from 1; 0: all are empty

if redis.call('LLEN', keys.destination) > 0 then return 1 end
for i = 2, #KEYS do
  if redis.call('LLEN', KEYS[i]) > 0 then return i end
end
return 0
