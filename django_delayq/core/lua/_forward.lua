-- Prelude: forwards, the jobs that follow others into other queues. The script that ends a job keeps them until a worker has
-- stored them where they belong.
--
-- Needs _clock, _follow. A member of `forwards` is
--   name of the queue that it goes to | '\0' | 15 digits, when the job before it ended (epoch ms) | token, 22 | the rest
-- with one score for all of them, so they are ordered by queue, and then by that moment. The list `forwards` of a script
-- has for each the index of the job before it, from 0; what its member has before the moment; what it has behind it. It stands
-- before the list of followers.

-- Where that list ends, and where it begins.
local function forwards_till()
  return (keys.timeout_set and followers_from() or #ARGV + 1) - 1
end

local function forwards_from()
  return forwards_till() + 1 - tonumber(args.forward_count) * #args.forwards
end

-- ends: the jobs that end, by their index. The caller has checked the type of the key.
local function store_forwards(ends, now_ms)
  local ended, members = string.format('%015.0f', now_ms), {}
  for i = forwards_from(), forwards_till(), #args.forwards do
    if ends[tonumber(args.forwards[i].index)] then
      members[#members + 1] = 0
      members[#members + 1] = args.forwards[i].before .. ended .. args.forwards[i].behind
    end
  end
  if #members > 0 then redis.call('ZADD', keys.forwards, unpack(members)) end
end
