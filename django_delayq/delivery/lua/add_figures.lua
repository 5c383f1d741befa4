-- Add what a process has counted to the figures of the minute, of the hour and of all times. Whoever finds that a minute
-- or an hour is over packs it. The clock may have been set back to one that is over: figures are added to it then.
--
-- Prelude  clock
-- Keys     minute, minutes, hour, hours, totals
-- Args     most: tasks that the queue may have figures of; further ones count as `rest`
--          rest: name of all further tasks
--          days_kept: days that are kept
--          tasks... (name, figures): name of a task, empty: the queue in whole; its figures, see delivery/statistics.py
-- Returns  the hour that was packed, what it has of the queue in whole and of tasks, and what there is of its day; nothing
--          if none was

local now_us, most, rest = read_clock(), tonumber(args.most), args.rest
-- So many moments of a closed hash are forgotten by their numbers; if there may be more, it is looked through.
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
local wanted, given = {}, {}
for i = args.tasks, #ARGV, #args.tasks do
  wanted[#wanted + 1], given[#given + 1] = 'task:' .. args.tasks[i].name, args.tasks[i].figures
end
local known, count = redis.call('HMGET', keys.totals, unpack(wanted)), redis.call('HLEN', keys.totals)
local fields, added = {}, {}
for n, field in ipairs(wanted) do
  if not known[n] then
    -- The queue in whole has a field as well.
    if field ~= 'task:' and count > most then field = 'task:' .. rest else count = count + 1 end
  end
  if not added[field] then fields[#fields + 1] = field end
  added[field] = add(added[field] or {}, read_figures(given[n]))
end

-- All is read before the first write.
local function read_fields(key)
  local found, all = {}, redis.call('HMGET', key, unpack(fields))
  for n, field in ipairs(fields) do found[field] = all[n] or '' end
  return found
end

-- Return field, value, …: what was there, and what is added to it.
local function sums(before)
  local values = {}
  for field, text in pairs(before) do
    if not added[field] then
      values[#values + 1], values[#values + 2] = field, text
    end
  end
  for _, field in ipairs(fields) do
    values[#values + 1] = field
    values[#values + 1] = cmsgpack.pack(add(read_figures(before[field]), added[field]))
  end
  return values
end

local function read_moment(text)
  local number = tonumber(text or nil)
  return number and number >= 0 and number < 2 ^ 53 and number % 1 == 0 and number or nil
end

-- Return what one that is open has of tasks, as it is kept once it is over; and what it has of the queue in whole.
local function closing(open)
  local names, figures, all, whole = {}, {}, redis.call('HGETALL', open), nil
  for i = 1, #all, 2 do
    if all[i]:sub(1, 5) == 'task:' and all[i] ~= 'task:' then
      names[#names + 1] = all[i]
      figures[all[i]] = all[i + 1]
    elseif all[i] == 'task:' then
      whole = all[i + 1]
    end
  end
  table.sort(names)
  local parts = { '\0' }
  for n, name in ipairs(names) do
    local short = name:sub(6, 1005)
    parts[n + 1] = struct.pack('>I2I2', #short, #figures[name]) .. short .. figures[name]
  end
  return whole, table.concat(parts)
end

-- The reverse of it, by field. Nothing: it is packed, so that only Python can read it.
local function opening(whole, tasks)
  if not tasks or tasks:byte(1) ~= 0 then return nil end
  local found, at = { ['task:'] = whole }, 2
  while at + 3 <= #tasks do
    local name, figures = struct.unpack('>I2I2', tasks, at)
    found['task:' .. tasks:sub(at + 4, at + 3 + name)] = tasks:sub(at + 4 + name, at + 3 + name + figures)
    at = at + 4 + name + figures
  end
  return found
end

-- Return the fields of those that are too old, and which is the oldest that stays.
local function old_ones(closed, first, now, kept)
  local old, last = {}, now - kept - 1
  if last - first < FORGOTTEN then
    for each = first, last do
      old[#old + 1] = decimal(each)
      old[#old + 1] = decimal(each) .. ':tasks'
    end
  else
    -- After a pause, or a leap of the clock. Those of a future that never came go as well.
    for _, field in ipairs(redis.call('HKEYS', closed)) do
      local each = read_moment(field:match('^%d+'))
      if each and (each <= last or each > now + kept) then old[#old + 1] = field end
    end
  end
  return old, math.max(first, last + 1)
end

local function span(open, closed, us, kept)
  local now = math.floor(now_us / us)
  local moment = read_moment(redis.call('HGET', open, 'moment'))
  if moment == now then return { now = now, values = sums(read_fields(open)) } end
  local over = redis.call('HMGET', closed, decimal(now), decimal(now) .. ':tasks', 'oldest')
  local before = over[1] and opening(over[1], over[2])
  -- The clock was set back, and this one is over already. If it is packed, or is only just over, the one that is open stays
  -- open. Else it is opened again: to close it once more would overwrite it.
  if moment and over[1] and (moment == now + 1 or not before) then
    return { now = moment, values = sums(read_fields(open)) }
  end
  local found = { now = now, is_over = true, values = sums(before or {}), old = {} }
  if before then found.reopened = decimal(now) end
  if moment then
    local oldest = math.min(read_moment(over[3]) or moment, moment)
    found.old, found.oldest = old_ones(closed, oldest, now, kept)
    if moment >= found.oldest then found.moment = moment end
    found.whole, found.tasks = closing(open)
  end
  return found
end
local minute = span(keys.minute, keys.minutes, 60000000, 480)
local hour = span(keys.hour, keys.hours, 3600000000, 2160)
local totals = sums(read_fields(keys.totals))
local day
if hour.is_over and hour.moment and hour.whole then
  day = redis.call('HGET', keys.hours, 'day:' .. decimal(math.floor(hour.moment / 24) % tonumber(args.days_kept))) or ''
end

-- A call takes a few thousand arguments.
local function each_thousand(command, key, values)
  for first = 1, #values, 1000 do
    redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
end

local function write(found, open, closed, kept_ms)
  if found.is_over then
    if found.moment and found.whole then
      local name = decimal(found.moment)
      redis.call('HSET', closed, name, found.whole, name .. ':tasks', found.tasks, 'oldest', decimal(found.oldest))
      redis.call('PEXPIRE', closed, kept_ms)
    end
    each_thousand('HDEL', closed, found.old)
    if found.reopened then redis.call('HDEL', closed, found.reopened, found.reopened .. ':tasks') end
    redis.call('DEL', open)
  end
  redis.call('HSET', open, 'moment', decimal(found.now))
  each_thousand('HSET', open, found.values)
  redis.call('PEXPIRE', open, kept_ms)
end
each_thousand('HSET', keys.totals, totals)
redis.call('PEXPIRE', keys.totals, 7776000000)
write(minute, keys.minute, keys.minutes, 28800000)
write(hour, keys.hour, keys.hours, 7776000000)
if not day then return {} end
return { hour.moment, hour.whole, hour.tasks, day }
