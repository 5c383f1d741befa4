-- Count held jobs by what they are held for; those that are held for batches count together, and without a prefix those
-- whose arguments do not fit. O(names * log N).
--
-- Prelude  clock, window, frame, job, held
-- Keys     held_tasks
-- ARGV[1]  most names to return
-- ARGV[2]  how the names begin; empty: all names
-- ARGV[3]  where to begin among the names, not before the first of them
-- Returns  how many are held for further names; then the name of a task or a key, 'batch ' or 'arguments ', and how many are
--          held for it, in turn

local names_left, prefix = tonumber(ARGV[1]), ARGV[2]

local reply = { 0 }
local function first_from(start)
  local member = redis.call('ZRANGEBYLEX', keys.held_tasks, '[' .. start, '+', 'LIMIT', 0, 1)[1]
  return member, member and redis.call('ZRANK', keys.held_tasks, member) or redis.call('ZCARD', keys.held_tasks)
end

local member, rank = first_from(ARGV[3])
while member and names_left > 0 and member:sub(1, #prefix) == prefix do
  local name = split_member(member)
  local past = name and name .. '\1'
  -- Each batch has a name of its own, and so has each call with other arguments. They would hide the names behind them.
  if name and name:sub(1, 6) == 'batch ' then
    name, past = 'batch ', 'batch!'
  elseif name and prefix == '' and name:sub(1, 10) == 'arguments ' then
    name, past = 'arguments ', 'arguments!'
  end
  local behind, next_rank = first_from(past or member .. '\0')
  if name then
    reply[#reply + 1] = name
    reply[#reply + 1] = next_rank - rank
    names_left = names_left - 1
  end
  member, rank = behind, next_rank
end
if member and prefix == '' then reply[1] = redis.call('ZCARD', keys.held_tasks) - rank end
return reply
