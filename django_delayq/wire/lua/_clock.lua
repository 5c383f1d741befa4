-- Prelude: the server's clock, read once a script. TIME is frozen while a script runs (7.2 on), so
-- nothing here can measure how long a script takes: every loop is bounded by counts and bytes instead.

local function read_clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Scores are integers. Lua would print 1.79e+12; the server must not see that.
local function decimal(number)
  return string.format('%.0f', number)
end

-- Publish a time; returns nil, or the error of the server where it refused. What was written before is not undone, so
-- an ACL without the channel (a new user has no channel) must not stop a script: listeners look at their next cap.
local function publish(channel, ms)
  local reply = redis.pcall('PUBLISH', channel, decimal(ms))
  return type(reply) == 'table' and reply.err or nil
end

-- A wait is '+' and ms from now, or '=' and epoch ms; what lies in the past means now. Never early:
-- both now and the delay are rounded up.
local function start_time(when, now_us)
  local now_ms = math.ceil(now_us / 1000)
  local number = tonumber(when:sub(2))
  if when:byte(1) == 43 then return now_ms + number end
  return math.max(number, now_ms)
end
