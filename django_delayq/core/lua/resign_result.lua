-- Replace parts of what is kept of a job that has ended, unless they have changed since they were read. Safe to repeat.
--
-- Keys     result
-- Args     items... (index, old, new): index in the list, from 0; the part as it was read; the part to write
-- Returns  how many were written

local count = 0
for i = args.items, #ARGV, #args.items do
  if redis.call('LINDEX', keys.result, args.items[i].index) == args.items[i].old then
    redis.call('LSET', keys.result, args.items[i].index, args.items[i].new)
    count = count + 1
  end
end
return count
