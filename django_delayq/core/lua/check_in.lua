-- Note that a worker process serves a queue, and say when it was noted before. Forget processes that have gone. A queue
-- in a later format is left as it is, and the reply is as if the process had just been noted.
--
-- Prelude  clock
-- Keys     control
-- Args     owner: 8 bytes that name the process
--          kept_ms: how long a process is remembered, ms
--          read_format: the format that it reads
-- Reply    before_ms: when this process was noted before as far as the server knows, or 0
--          now_ms: the present time

local owner, kept_ms = args.owner, tonumber(args.kept_ms)
local now_ms = math.floor(read_clock() / 1000)

local before_ms, over = 0, {}
local fields = redis.call('HGETALL', keys.control)
for i = 1, #fields, 2 do
  local name = fields[i]
  if name == 'format' and (tonumber(fields[i + 1]) or 0) > tonumber(args.read_format) then return { now_ms, now_ms } end
  if name:sub(1, 5) == 'seen:' then
    local seen_ms = tonumber(fields[i + 1])
    if name:sub(6) == owner then
      before_ms = seen_ms or 0
    elseif not seen_ms or math.abs(now_ms - seen_ms) > kept_ms then
      -- A clock that was set back must not make a process immortal.
      over[#over + 1] = name
    end
  end
end
-- First a command that a full server does not refuse.
redis.call('HDEL', keys.control, '', unpack(over))
redis.call('HSET', keys.control, 'seen:' .. owner, decimal(now_ms))
return { before_ms, now_ms }
