-- Prelude: the counters of a queue. Needs no other.

-- Add to a counter and return it. A counter that holds no number, or the largest possible, begins anew: otherwise
-- whoever wrote that would have stopped the queue.
local function add_to(counters, name, count)
  local number = redis.pcall('HINCRBY', counters, name, count)
  if type(number) == 'number' then return number end
  local is_spoilt = number.err:find('not an integer', 1, true) or number.err:find('overflow', 1, true)
  if is_spoilt then redis.call('HDEL', counters, name) end
  -- Any other error comes again, as the client knows it.
  return redis.call('HINCRBY', counters, name, count)
end
