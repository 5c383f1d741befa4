-- Say which format a worker process reads, and raise the format of its queue once all that live read a later one.
--
-- Prelude  clock
-- KEYS[1]  hash  control: format, and by owner which formats workers read
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  owner, 8 bytes
-- ARGV[3]  the latest format that it reads
-- ARGV[4]  how long what a process said counts, ms: as long the queue waits for one that has gone
-- Returns  the format of the queue; how many processes read no later one

local control, owner, reads, kept_ms = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

local format, lowest, over, behind = 1, reads, {}, 0
local fields = redis.call('HGETALL', control)
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if name == 'format' then
    format = tonumber(value) or format
  elseif name:sub(1, 6) == 'reads:' and name:sub(7) ~= owner then
    local said_ms, their = value:match('^(%d+) (%d+)$')
    -- A clock that was set back must not make a process immortal.
    if said_ms and math.abs(now_ms - tonumber(said_ms)) <= kept_ms then
      lowest = math.min(lowest, tonumber(their))
      if tonumber(their) < reads then behind = behind + 1 end
    else
      over[#over + 1] = name
    end
  end
end
for _, name in ipairs(over) do redis.call('HDEL', control, name) end
redis.call('HDEL', control, '')
redis.call('HSET', control, 'reads:' .. owner, string.format('%.0f %d', now_ms, reads))
if lowest > format then
  format = lowest
  redis.call('HSET', control, 'format', format)
end
return { format, behind }
