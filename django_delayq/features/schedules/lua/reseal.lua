-- Replace signed texts of schedules by others that say the same. A repeat changes nothing.
--
-- Prelude  clock, window, frame, job, schedules
-- Keys     schedules, channel
-- Args     version: the version of the definitions that the caller has read
--          fields... (field, text): a pair for each text: its field, and what to write there, or empty to delete it
-- Returns  the new version of the definitions, or 0 if another process has changed one: then the script changes
--          nothing; and, if an ACL closes the channel to us, the server's error

local now_us, version = read_clock(), read_version()
if version ~= (tonumber(args.version) or 0) then return 0 end
-- A removal is first, which a full server does not refuse.
redis.call('HDEL', keys.schedules, '')
for i = args.fields, #ARGV, #args.fields do
  if args.fields[i].text == '' then
    redis.call('HDEL', keys.schedules, args.fields[i].field)
  else
    redis.call('HSET', keys.schedules, args.fields[i].field, args.fields[i].text)
  end
end
version = math.max(version + 1, math.floor(now_us))
redis.call('HSET', keys.schedules, 'version', decimal(version))
local refusal = publish(keys.channel, 0)
return refusal and { version, refusal } or version
