-- Prelude: how many elements to read at a time. Needs no other.
--
-- The server copies an element to Lua whole, and no command gives its size first. So a read begins with one element,
-- and the sizes seen so far say how many more fit the budget: where they are alike, a call exceeds it by one element.

-- Small elements say nothing of a large one behind them.
local WIDEST = 8

-- size: elements of the last read, 0 at first; done, byte_count: all that was read, and its bytes.
local function next_size(size, done, byte_count, budget)
  if size == 0 then return 1 end
  local fitting = WIDEST
  if byte_count > 0 then fitting = math.floor((budget - byte_count) * done / byte_count) end
  return math.max(1, math.min(4 * size, WIDEST, fitting))
end
