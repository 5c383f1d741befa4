-- Replace signed texts of schedules by others that say the same. A repeat changes nothing.
--
-- Prelude  clock, window, frame, job, schedules
-- Keys     schedules, channel
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  the version of the definitions that the caller has read
-- ARGV[3]  and on, a pair for each text: its field, and what to write there, or empty to delete it
-- Returns  the new version of the definitions, or 0 if another process has changed one: then the script changes
--          nothing; and, if an ACL closes the channel to us, the server's error

local now_us, version = read_clock(ARGV[1]), read_version()
if version ~= (tonumber(ARGV[2]) or 0) then return 0 end
-- A removal is first, which a full server does not refuse.
redis.call('HDEL', keys.schedules, '')
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', keys.schedules, ARGV[i])
  else
    redis.call('HSET', keys.schedules, ARGV[i], ARGV[i + 1])
  end
end
version = math.max(version + 1, math.floor(now_us))
redis.call('HSET', keys.schedules, 'version', decimal(version))
local refusal = publish(keys.channel, 0)
return refusal and { version, refusal } or version
