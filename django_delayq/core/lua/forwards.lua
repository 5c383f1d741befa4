-- Count the forwards of a queue by target queue. O(queues * log N).
--
-- Prelude  clock
-- Keys     forwards
-- Args     most: most queues to return
-- Reply    now_ms: the present time
--          waiting... (queue, number, since_ms): how many go to a queue; when the job before the first of them ended

local waiting = {}
local from = '-'
for _ = 1, tonumber(args.most) do
  local member = redis.call('ZRANGEBYLEX', keys.forwards, from, '+', 'LIMIT', 0, 1)[1]
  if not member then break end
  local queue, ended = member:match('^([^%z]*)%z(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)')
  -- What no script of ours has written is passed over.
  from = '[' .. (queue and queue .. '\1' or member .. '\0')
  if queue then
    local number = redis.call('ZLEXCOUNT', keys.forwards, '[' .. queue .. '\0', '(' .. queue .. '\1')
    local n = #waiting
    waiting[n + 1], waiting[n + 2], waiting[n + 3] = queue, number, tonumber(ended)
  end
end
return { math.floor(read_clock() / 1000), waiting }
