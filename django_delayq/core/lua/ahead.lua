-- Count what will be due within some times from now: jobs before their first attempt, and retries. O(windows * log N).
--
-- Prelude  clock
-- Keys     timeout_set, returned, retries
-- Args     ends_ms...: so many ms ahead, rising
-- Returns  for each of those: how many are due until then, what is due now included; and before them, how many are now

local now_ms = math.floor(read_clock() / 1000)
local sets, reply = {}, {}
for _, set in ipairs({ keys.timeout_set, keys.returned, keys.retries }) do
  if redis.call('ZCARD', set) > 0 then sets[#sets + 1] = set end
end
local ends_ms = { 0, unpack(ARGV, args.ends_ms) }
for n, end_ms in ipairs(ends_ms) do
  local till, count = decimal(now_ms + tonumber(end_ms)), 0
  for _, set in ipairs(sets) do count = count + redis.call('ZCOUNT', set, '-inf', till) end
  reply[n] = count
end
return reply
