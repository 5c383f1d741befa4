-- Let jobs go on that are held for limits which admit them now: a limit was raised, or no code has it any more; or a job
-- that was to start before them has been moved or deleted. Free slots of leases that somebody has deleted.
--
-- Prelude  clock, window, frame, job, held, limit
-- Keys     control, channel, leases, slots, paces, held, held_tasks, headers, errors, retries, returned, ranked
-- Args     name: name of the limit; empty: all
--          cursor: where to go on, as the last call returned it; empty: at the first
--          name_limit: most limits and keys to look at
--          limit: most jobs to let go on
-- Reply    released: how many go on
--          cursor: where to go on, empty at the end

local now_ms, only, cursor = math.floor(read_clock() / 1000), args.name, args.cursor
local names_left, most = tonumber(args.name_limit), tonumber(args.limit)
local limited, count = of_limits(), 0
limited.check()
local first = only == '' and reason_of('limit') or reason_of('limit', only)
-- A length comes next, and ':' is behind all digits.
local last = first .. ':'
if cursor == '' then cursor = first end

while names_left > 0 and count < most do
  local member = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. cursor, '(' .. last, 'LIMIT', 0, 1)[1]
  if not member then
    cursor = ''
    break
  end
  local name = split_member(member)
  if not name then
    -- No script of ours has written it; release.lua deletes it.
    cursor = member .. '\0'
  else
    local limit = limit_named(name) or '\0'
    local stale = limited.stale_slots(limit)
    if #stale > 0 then redis.call('ZREM', keys.slots, unpack(stale)) end
    local room = most - count
    local went = limited.let_go(limit, room, now_ms)
    count = count + went
    cursor = went < room and name .. '\1' or name .. '\0'
  end
  names_left = names_left - 1
end
return { count, cursor }
