-- Read how many shards a queue has, as one part of it says; or change that, and close the part or open it.
--
-- A part is a shard, or the queue of the bare name. Nobody can store a job in a closed part: its key `ranked` has another type,
-- which every script that stores jobs meets before its first write.
--
-- Keys     control, ranked, timeout_set, destination, leases, retries, returned, held, dead, quarantine, forwards, schedules,
--          counters
-- Args     changes: 1: change it; 0: only read
--          old: what the part has to say; empty: nothing
--          new: what it says from now on; empty: nothing. With ' closed' at its end the part is closed, but only if it holds nothing
-- Reply    said: what the part says now; empty: nothing
--          jobs: how many wait or run, or go to another queue
--          kept: how many are dead letters or in quarantine
--          schedules: how many are stored or changed
--          set: how many pauses and limits were set by hand
--          was_used: 1: it has had jobs

-- A key of another type keeps no worker from its jobs, and is not nothing.
local function size_of(command, key)
  local size = redis.pcall(command, key)
  return type(size) == 'number' and size or 1
end

local function held()
  local jobs, kept, schedules, set = size_of('LLEN', keys.destination), 0, 0, 0
  for _, each in ipairs({ keys.timeout_set, keys.leases, keys.retries, keys.returned, keys.held, keys.forwards }) do
    jobs = jobs + size_of('ZCARD', each)
  end
  for _, each in ipairs({ keys.dead, keys.quarantine }) do kept = kept + size_of('ZCARD', each) end
  local names = redis.pcall('HKEYS', keys.schedules)
  if names.err then schedules = 1 end
  for _, name in ipairs(names) do
    -- Those on their way to another server count: they may come back.
    if name:match('^stored ') or name:match('^moving stored ') or name:match('^change ') then schedules = schedules + 1 end
  end
  local fields = redis.call('HGETALL', keys.control)
  for i = 1, #fields, 2 do
    local name = fields[i]
    local is_limit = name == 'queue_limit' or name:match('^limit:')
    if name == 'paused' or name == 'paused_tasks' or is_limit and fields[i + 1]:find('"set":', 1, true) then set = set + 1 end
  end
  return jobs, kept, schedules, set
end

local said = redis.call('HGET', keys.control, 'shards') or ''
-- What cannot be read says nothing, so that another text may replace it.
if not said:gsub(' closed$', ''):match('^%d%d? [%w_-]+$') then said = '' end
local jobs, kept, schedules, set = held()
local is_closed, closes = redis.pcall('HEXISTS', keys.ranked, 'closed') == 1, args.new:match(' closed$')
-- Of a part that was closed, somebody may have deleted the key that says so.
local may_close = is_closed or said:match(' closed$') or jobs + kept + schedules + set == 0
if args.changes == '1' and said == args.old and (may_close or not closes) then
  said = args.new
  -- A removal is first, which a full server does not refuse.
  if is_closed or closes then redis.call('DEL', keys.ranked) end
  if closes then redis.call('HSET', keys.ranked, 'closed', 1) end
  if said == '' then
    redis.call('HDEL', keys.control, 'shards')
  else
    redis.call('HSET', keys.control, 'shards', said)
  end
end
return { said, jobs, kept, schedules, set, size_of('HLEN', keys.counters) > 0 and 1 or 0 }
