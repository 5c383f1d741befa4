-- Remember how jobs ended, for people, and forget what is beyond a number. A repeat adds them twice: readers drop that.
--
-- Keys     last_ended
-- Args     keep: how many records are kept, 1 or more
--          records...: the oldest first
-- Returns  nil

local room = tonumber(args.keep) - (#ARGV - args.records + 1)
redis.call('LLEN', keys.last_ended)
-- A full server refuses no removal, and a script that begins with one.
if room > 0 then
  redis.call('LTRIM', keys.last_ended, -room, -1)
else
  redis.call('DEL', keys.last_ended)
end
redis.call('RPUSH', keys.last_ended, unpack(ARGV, math.max(args.records, args.records - room)))
return nil
