-- Prelude: the server's clock, read once a script. From 7.2 on TIME is frozen while a script runs, so no script can
-- measure how long it takes: counts and bytes bound every loop instead.

local function read_clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Scores are integers. Lua would print 1.79e+12, which the server must not see.
local function decimal(number)
  return string.format('%.0f', number)
end

-- Publish a time; returns nil, or the server's error if it refused. Earlier writes are not undone, so an ACL without
-- the channel (a new user has none) must not stop a script: listeners then look when their cap is over.
local function publish(channel, ms)
  local reply = redis.pcall('PUBLISH', channel, decimal(ms))
  return type(reply) == 'table' and reply.err or nil
end

-- A wait is '+' and ms from now, or '=' and epoch ms; a time in the past means now. No job is early, as both now and
-- the delay are rounded up.
local function start_time(when, now_us)
  local now_ms = math.ceil(now_us / 1000)
  local number = tonumber(when:sub(2))
  if when:byte(1) == 43 then return now_ms + number end
  return math.max(number, now_ms)
end
