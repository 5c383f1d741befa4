-- Add what a process has counted to the figures of the minute, of the hour and of all times. Whoever finds that a minute
-- or an hour is over packs it.
--
-- Prelude  clock
-- Keys     minute, minutes, hour, hours, totals
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  tasks that the queue may have figures of; further ones count as ARGV[3]
-- ARGV[3]  name of all further tasks
-- ARGV[4]  days that are kept
-- ARGV[5]  and on, two each: name of a task, empty: the queue in whole; its figures, see delivery/statistics.py
-- Returns  the hour that was packed, what it has of the queue in whole and of tasks, and what there is of its day; nothing
--          if none was

local now_us, most, rest = read_clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
-- Moments of a closed hash that one call forgets.
local FORGOTTEN = 500

-- Figures are a flat array of code, number, code, number, in the order of the codes. What is none is empty.
local function read_figures(text)
  local is_read, figures = pcall(cmsgpack.unpack, text or '')
  if not is_read or type(figures) ~= 'table' or #figures % 2 == 1 then return {} end
  for _, number in ipairs(figures) do
    if type(number) ~= 'number' or number % 1 ~= 0 then return {} end
  end
  return figures
end

local function add(one, other)
  local sum, i, j = {}, 1, 1
  while one[i] or other[j] do
    local a, b = one[i], other[j]
    if not b or (a and a < b) then
      sum[#sum + 1], sum[#sum + 2], i = a, one[i + 1], i + 2
    elseif not a or b < a then
      sum[#sum + 1], sum[#sum + 2], j = b, other[j + 1], j + 2
    else
      sum[#sum + 1], sum[#sum + 2], i, j = a, one[i + 1] + other[j + 1], i + 2, j + 2
    end
  end
  return sum
end

-- Task names are limited by what is known of all times.
local wanted = {}
for i = 5, #ARGV, 2 do wanted[#wanted + 1] = 'task:' .. ARGV[i] end
local known, count = redis.call('HMGET', keys.totals, unpack(wanted)), redis.call('HLEN', keys.totals)
local fields, added = {}, {}
for n, field in ipairs(wanted) do
  if not known[n] then
    -- The queue in whole has a field as well.
    if field ~= 'task:' and count > most then field = 'task:' .. rest else count = count + 1 end
  end
  if not added[field] then fields[#fields + 1] = field end
  added[field] = add(added[field] or {}, read_figures(ARGV[4 + 2 * n]))
end

-- All is read before the first write.
local function sums(key)
  local found = redis.call('HMGET', key, unpack(fields))
  local values = {}
  for n, field in ipairs(fields) do
    values[#values + 1] = field
    values[#values + 1] = cmsgpack.pack(add(read_figures(found[n]), added[field]))
  end
  return values
end

local function span(open, closed, us, kept)
  local now = math.floor(now_us / us)
  local moment = tonumber(redis.call('HGET', open, 'moment') or nil)
  -- If the clock was set back a little, what is closed stays closed: to close it once more would overwrite it.
  if moment == now + 1 and redis.call('HEXISTS', closed, decimal(now)) == 1 then now = moment end
  local oldest = tonumber(redis.call('HGET', closed, 'oldest') or nil)
  local found = { now = now, is_over = moment ~= now, first = oldest or moment }
  if found.is_over then
    local names, figures, all = {}, {}, redis.call('HGETALL', open)
    for i = 1, #all, 2 do
      if all[i]:sub(1, 5) == 'task:' and all[i] ~= 'task:' then
        names[#names + 1] = all[i]
        figures[all[i]] = all[i + 1]
      elseif all[i] == 'task:' then
        found.whole = all[i + 1]
      end
    end
    table.sort(names)
    local parts = { '\0' }
    for n, name in ipairs(names) do
      local short = name:sub(6, 1005)
      parts[n + 1] = struct.pack('>I2I2', #short, #figures[name]) .. short .. figures[name]
    end
    found.moment, found.tasks = moment, table.concat(parts)
    found.over = {}
    if found.first and found.first == math.floor(found.first) then
      for each = found.first, math.min(now - kept - 1, found.first + FORGOTTEN) do
        found.over[#found.over + 1] = decimal(each)
        found.over[#found.over + 1] = decimal(each) .. ':tasks'
        found.first = each + 1
      end
    end
  end
  found.values = found.is_over and {} or sums(open)
  if found.is_over then
    for _, field in ipairs(fields) do
      found.values[#found.values + 1] = field
      found.values[#found.values + 1] = cmsgpack.pack(added[field])
    end
  end
  return found
end
local minute = span(keys.minute, keys.minutes, 60000000, 480)
local hour = span(keys.hour, keys.hours, 3600000000, 2160)
local totals = sums(keys.totals)
local day
if hour.is_over and hour.moment and hour.whole then
  day = redis.call('HGET', keys.hours, 'day:' .. decimal(math.floor(hour.moment / 24) % tonumber(ARGV[4]))) or ''
end

local function write(found, open, closed, kept_ms)
  if found.is_over then
    if found.moment and found.whole then
      local name = decimal(found.moment)
      redis.call('HSET', closed, name, found.whole, name .. ':tasks', found.tasks, 'oldest', decimal(found.first))
      redis.call('PEXPIRE', closed, kept_ms)
    end
    if #found.over > 0 then redis.call('HDEL', closed, unpack(found.over)) end
    redis.call('DEL', open)
  end
  redis.call('HSET', open, 'moment', decimal(found.now), unpack(found.values))
  redis.call('PEXPIRE', open, kept_ms)
end
redis.call('HSET', keys.totals, unpack(totals))
redis.call('PEXPIRE', keys.totals, 7776000000)
write(minute, keys.minute, keys.minutes, 28800000)
write(hour, keys.hour, keys.hours, 7776000000)
if not day then return {} end
return { hour.moment, hour.whole, hour.tasks, day }
