-- Replace parts of what is kept of a job that has ended, unless they have changed since they were read. Safe to repeat.
--
-- Keys     result
-- ARGV[1]  and on, three each: index in the list, from 0; the part as it was read; the part to write
-- Returns  how many were written

local count = 0
for i = 1, #ARGV, 3 do
  if redis.call('LINDEX', keys.result, ARGV[i]) == ARGV[i + 1] then
    redis.call('LSET', keys.result, ARGV[i], ARGV[i + 2])
    count = count + 1
  end
end
return count
