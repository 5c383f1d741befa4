-- Prelude: how many elements to read at a time. Needs no other.
--
-- The server copies whole elements to Lua, and no command tells their sizes first. So a read begins with one element,
-- and the sizes seen so far say how many more fit the budget. If sizes are alike, a call exceeds it by one element.

-- Small elements do not announce a large one behind them.
local WIDEST = 8

-- size: elements of the last read, 0 at first; done, byte_count: elements and bytes read in all.
local function next_size(size, done, byte_count, budget)
  if size == 0 then return 1 end
  local fitting = WIDEST
  if byte_count > 0 then fitting = math.floor((budget - byte_count) * done / byte_count) end
  return math.max(1, math.min(4 * size, WIDEST, fitting))
end
