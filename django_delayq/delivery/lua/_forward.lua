-- Prelude: forwards, the jobs that follow others into other queues. The script that ends a job keeps them until a worker has
-- stored them where they belong.
--
-- Needs _clock, _follow. A member of `forwards` is
--   name of the queue that it goes to | '\0' | 15 digits, when the job before it ended (epoch ms) | token, 22 | the rest
-- with one score for all of them, so they are ordered by queue, and then by that moment. Before what _follow.lua says, at
-- the end of a script's arguments, stand three for each: the index of the job before it, from 0; what its member has before
-- the moment; what it has behind it. Then comes their number.

local function forwards_till()
  return (keys.timeout_set and followers_from() or #ARGV + 1) - 1
end

-- Returns where these arguments begin.
local function forwards_from()
  local till = forwards_till()
  return till - 3 * tonumber(ARGV[till])
end

-- ends: the jobs that end, by their index. The caller has checked the type of the key.
local function store_forwards(ends, now_ms)
  local ended, members = string.format('%015.0f', now_ms), {}
  for i = forwards_from(), forwards_till() - 1, 3 do
    if ends[tonumber(ARGV[i])] then
      members[#members + 1] = 0
      members[#members + 1] = ARGV[i + 1] .. ended .. ARGV[i + 2]
    end
  end
  if #members > 0 then redis.call('ZADD', keys.forwards, unpack(members)) end
end
