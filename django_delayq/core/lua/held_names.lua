-- Count held jobs by what they are held for; those that are held for batches count together, and without a prefix those
-- whose calls do not fit. O(reasons * log N).
--
-- Prelude  clock, window, frame, job, held
-- Keys     held_tasks
-- Args     most: most reasons to return
--          prefix: how the reasons begin, see _held.lua; empty: all
--          cursor: where to begin among them, not before the first
-- Reply    rest: how many are held for further reasons
--          counts... (reason, number): how many are held for a reason, of batches and calls the kind alone

local names_left, prefix = tonumber(args.most), args.prefix
-- Members that no script of ours has written are passed over, so many at most.
local others_left = 1000

local counts, rest = {}, 0
local function first_from(start)
  local member = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. start, '+', 'LIMIT', 0, 1)[1]
  return member, member and redis.call('ZRANK', keys.held_tasks, member) or redis.call('ZCARD', keys.held_tasks)
end

local member, rank = first_from(args.cursor)
while member and names_left > 0 and others_left > 0 and member:sub(1, #prefix) == prefix do
  local name, _, kind = split_member(member)
  local past = name and name .. '\1'
  -- Each batch has a name of its own, and so has each call with other arguments. They would hide the names behind them.
  if kind == 'batch' or kind == 'call' and prefix == '' then
    name = reason_of(kind)
    -- Behind all digits, with which a length begins.
    past = name .. ':'
  end
  local behind, next_rank = first_from(past or member .. '\0')
  if name then
    counts[#counts + 1] = name
    counts[#counts + 1] = next_rank - rank
    names_left = names_left - 1
  else
    others_left = others_left - 1
  end
  member, rank = behind, next_rank
end
if member and prefix == '' then rest = redis.call('ZCARD', keys.held_tasks) - rank end
return { rest, counts }
