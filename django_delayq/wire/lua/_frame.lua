-- Prelude: the members of the timeout set. docs/wire-format.md, "Frame".
--
-- In neither format does Redisson look at the 8 random bytes, so ours hold a mark and a number:
--   'd9 4c' (listed: the frame is in the delay queue as well) or 'd9 55' (unlisted) | u48 big-endian
-- Java's random bytes may look the same by accident. So a script that acts on a mark compares the whole frame, or
-- checks that the number was ever given out.

local LISTED = '\217L'
local UNLISTED = '\217U'
-- All our numbers are lower: 2^44.
local UNLIKELY = 17592186044416

local function pack_frame(format, listed, number, payload)
  local mark = listed and LISTED or UNLISTED
  -- The payload is appended here, as pack() copies byte by byte.
  if format == '1' then return struct.pack('<c2>I6<L', mark, number, #payload) .. payload end
  return struct.pack('<Bc2>I6<L', 8, mark, number, #payload) .. payload
end

-- One shape fits both formats: seventeen bytes, an empty payload in Bc0Lc0 or one zero byte in dLc0. It is read as
-- `format`, the queue's own: '1' (dLc0) or '2'; nil where it does not matter.
-- Returns payload, the 8 bytes, the format; or nil for bytes that no Redisson has written.
local function unpack_frame(frame, format)
  local size = #frame
  if size >= 17 and frame:byte(1) == 8 and struct.unpack('<L', frame, 10) == size - 17
    and not (format == '1' and size == 17 and struct.unpack('<L', frame, 9) == 1) then
    return frame:sub(18), frame:sub(2, 9), 2
  end
  if size >= 16 and struct.unpack('<L', frame, 9) == size - 16 then
    return frame:sub(17), frame:sub(1, 8), 1
  end
  return nil
end

-- The number of a frame that lies in the delay queue, or nil for a foreign one.
local function listed_number(frame)
  if #frame < 9 then return nil end
  if frame:byte(1) == 8 and frame:sub(2, 3) == LISTED then return (struct.unpack('>I6', frame, 4)) end
  if frame:sub(1, 2) == LISTED then return (struct.unpack('>I6', frame, 3)) end
  return nil
end

-- The number of a frame of ours that was never in the delay queue, or nil.
local function unlisted_number(frame)
  if #frame < 9 then return nil end
  if frame:byte(1) == 8 and frame:sub(2, 3) == UNLISTED then return (struct.unpack('>I6', frame, 4)) end
  if frame:sub(1, 2) == UNLISTED then return (struct.unpack('>I6', frame, 3)) end
  return nil
end

local function is_foreign(frame)
  local mark = frame:byte(1) == 8 and frame:sub(2, 3) or frame:sub(1, 2)
  return #frame < 9 or mark ~= LISTED and mark ~= UNLISTED
end

-- The server orders members of one score by their bytes; Lua would compare strings by the server's locale.
local function is_below(member, bytes)
  local size, at = math.min(#member, #bytes), 1
  while at + 5 <= size do
    local a, b = struct.unpack('>I6', member, at), struct.unpack('>I6', bytes, at)
    if a ~= b then return a < b end
    at = at + 6
  end
  for i = at, size do
    local a, b = member:byte(i), bytes:byte(i)
    if a ~= b then return a < b end
  end
  return #member < #bytes
end

-- The rank of the first member with this score that is not below the given bytes; and the rank of the first member
-- with a higher score. O(log N), however many members share the score.
local function rank_from(set, score, bytes)
  local low = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', set, score, score)
  local stop = high
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_below(redis.call('ZRANGE', set, middle, middle)[1], bytes) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low, stop
end
