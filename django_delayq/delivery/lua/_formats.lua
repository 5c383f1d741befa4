-- Prelude: the format of a queue, and which formats its workers read. docs/wire-format.md, "Formats".

-- Returns the format of the queue; the format that a command has chosen to be written, or nil; by owner, the latest
-- format that each living process reads; the fields of processes that have gone.
local function read_formats(control, now_ms, kept_ms)
  local format, written, reads, over = 1, nil, {}, {}
  local fields = redis.call('HGETALL', control)
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == 'format' then
      format = tonumber(value) or format
    elseif name == 'written' then
      written = tonumber(value)
    elseif name:sub(1, 6) == 'reads:' then
      local said_ms, latest = value:match('^(%d+) (%d+)$')
      -- A clock that was set back must not make a process immortal.
      if said_ms and math.abs(now_ms - tonumber(said_ms)) <= kept_ms then
        reads[name:sub(7)] = tonumber(latest)
      else
        over[#over + 1] = name
      end
    end
  end
  return format, written, reads, over
end

-- How many processes read only earlier formats than this one.
local function count_behind(reads, format)
  local count = 0
  for _, latest in pairs(reads) do
    if latest < format then count = count + 1 end
  end
  return count
end
