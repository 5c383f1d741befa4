-- Add what a process has counted to the figures of the minute, of the hour and of all times. Whoever finds that a minute
-- or an hour is over puts it into its slot, and notes what there is of all times before the first figures of a day.
--
-- Prelude  clock
-- Keys     minute, minutes, hour, hours, totals
-- Args     most: tasks that the queue may have figures of; further ones count as `rest`
--          rest: name of all further tasks
--          minute_slots: slots of minutes, which take turns
--          hour_slots: slots of hours
--          days_kept: days that are kept
--          tasks... (name, figures): name of a task, empty: the queue in whole; its figures, see features/statistics/calls.py
-- Returns  of each slot that was written: minute or hour, its field, what it has of tasks

local now_us, most, rest, days_kept = read_clock(), tonumber(args.most), args.rest, tonumber(args.days_kept)
local minute_slots, hour_slots = tonumber(args.minute_slots), tonumber(args.hour_slots)
local minutes_ms, hours_ms = (minute_slots - 1) * 60000, (hour_slots - 1) * 3600000

-- Return stored figures: arrays of whole numbers, or else an error, as readers refuse anything else.
local function read_figures(stored)
  local figures = {}
  for part, numbers in ipairs(cmsgpack.unpack(stored)) do
    for n = 1, #numbers do
      local number = numbers[n]
      if number < 0 or number >= 2 ^ 63 or number % 1 ~= 0 then error() end
    end
    -- A map becomes an array.
    figures[part] = { unpack(numbers) }
  end
  return figures
end

-- Add figures to the stored ones and return the sums. A stored value that is not a list of figures counts as zero.
local function sum(stored, figures)
  local is_read, sums = pcall(read_figures, stored)
  if not is_read then sums = {} end
  for part, numbers in ipairs(figures) do
    local to = sums[part] or {}
    for n = 1, #numbers do to[n] = (to[n] or 0) + numbers[n] end
    sums[part] = to
  end
  return cmsgpack.pack(sums)
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
  added[field] = cmsgpack.unpack(added[field] and sum(given[n], added[field]) or given[n])
end

-- Return field, value, …: the figures of a hash with ours added. The script reads everything before it writes.
local function sums(key)
  local values, before = {}, key and redis.call('HMGET', key, unpack(fields)) or {}
  for n, field in ipairs(fields) do
    values[2 * n - 1], values[2 * n] = field, sum(before[n], added[field])
  end
  return values
end

local function read_moment(text)
  local number = tonumber(text or nil)
  return number and number >= 0 and number < 2 ^ 32 and number % 1 == 0 and number or nil
end

-- Return what a hash has of the queue in whole, and of tasks, as slots have it.
local function closing(key)
  local whole, tasks, all = '', {}, redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local name = all[i]:match('^task:(.*)')
    if name then
      name = name:sub(1, 1000)
      local entry = struct.pack('>I2I2', #name, #all[i + 1]) .. name .. all[i + 1]
      if name == '' then whole = entry else tasks[#tasks + 1] = entry end
    end
  end
  table.sort(tasks)
  return whole, table.concat(tasks)
end

local function span(open, closed, us, slots)
  local now, moment = math.floor(now_us / us), read_moment(redis.call('HGET', open, 'moment'))
  if moment == now then return { now = now, values = sums(open) } end
  local found = { now = now, values = sums(nil), is_over = true }
  if moment then
    local head, whole, tasks = struct.pack('>I4', moment), closing(open)
    found.slot = decimal(moment % slots)
    local before = redis.call('HMGET', closed, found.slot, found.slot .. ':tasks')
    -- If the clock was set back to one that was over, this is more of it.
    for n = 1, 2 do before[n] = before[n] and before[n]:sub(1, 4) == head and before[n] or head .. '\0' end
    found.whole, found.tasks = before[1] .. whole, before[2] .. tasks
  end
  return found
end
local minute = span(keys.minute, keys.minutes, 60000000, minute_slots)
local hour = span(keys.hour, keys.hours, 3600000000, hour_slots)
local totals = sums(keys.totals)
-- A day begins when the clock first says so, wherever it goes from there.
local today, day, before = math.floor(now_us / 86400000000), nil, nil
if read_moment(redis.call('HGET', keys.hours, 'day')) ~= today then
  day = 'day:' .. decimal(today % days_kept)
  local head, there = struct.pack('>I4', today), redis.call('HGET', keys.hours, day)
  if not there or there:sub(1, 4) ~= head then
    local _, tasks = closing(keys.totals)
    before = head .. '\0' .. tasks
  end
end

local slots = {}
local function write(unit, found, open, closed, kept_ms)
  if found.slot then
    redis.call('HSET', closed, found.slot, found.whole, found.slot .. ':tasks', found.tasks)
    redis.call('PEXPIRE', closed, kept_ms)
    slots[#slots + 1] = { unit, found.slot .. ':tasks', found.tasks }
  end
  if found.is_over then redis.call('DEL', open) end
  redis.call('HSET', open, 'moment', decimal(found.now), unpack(found.values))
  redis.call('PEXPIRE', open, kept_ms)
end
redis.call('HSET', keys.totals, unpack(totals))
redis.call('PEXPIRE', keys.totals, hours_ms)
write('minute', minute, keys.minute, keys.minutes, minutes_ms)
write('hour', hour, keys.hour, keys.hours, hours_ms)
if day then
  redis.call('HSET', keys.hours, 'day', decimal(today))
  if before then
    redis.call('HSET', keys.hours, day, before)
    slots[#slots + 1] = { 'hour', day, before }
  end
  redis.call('PEXPIRE', keys.hours, hours_ms)
end
return slots
