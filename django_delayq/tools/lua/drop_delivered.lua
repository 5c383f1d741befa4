-- Take frames out of the timeout set that were delivered already. They are gone from the delay queue: a Redisson that
-- stopped in the middle of a transfer has pushed and unlisted them.
--
-- Prelude  window, frame, job
-- Keys     timeout_set, delay_queue
-- Args     is_drop: 1: take them out; 0: only look
--          frames... (start, format, id): start time (epoch ms); format, 1 (dLc0) or 2 (Bc0Lc0); its 8 bytes
-- Returns  one character a frame: '1' if it was delivered, '0' if it waits or is no longer there

local is_drop = args.is_drop == '1'
local flags, delivered = {}, {}
for i = args.frames, #ARGV, #args.frames do
  local frame = find_frame(keys.timeout_set, { start = tonumber(args.frames[i].start), format = tonumber(args.frames[i].format), id = args.frames[i].id })
  local is_delivered = frame and not redis.call('LPOS', keys.delay_queue, frame)
  flags[#flags + 1] = is_delivered and '1' or '0'
  if is_delivered then delivered[#delivered + 1] = frame end
end
if is_drop and #delivered > 0 then redis.call('ZREM', keys.timeout_set, unpack(delivered)) end
return table.concat(flags)
