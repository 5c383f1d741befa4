-- Remember how jobs ended, for people, and forget what is beyond a number. A repeat adds them twice: readers drop that.
--
-- Keys     last_ended
-- ARGV[1]  how many records are kept, 1 or more
-- ARGV[2]  and on: records, the oldest first
-- Returns  nil

local room = tonumber(ARGV[1]) - (#ARGV - 1)
redis.call('LLEN', keys.last_ended)
-- A full server refuses no removal, and a script that begins with one.
if room > 0 then
  redis.call('LTRIM', keys.last_ended, -room, -1)
else
  redis.call('DEL', keys.last_ended)
end
redis.call('RPUSH', keys.last_ended, unpack(ARGV, math.max(2, 2 - room)))
return nil
