-- Pause a queue, or one task on it. Nothing moves: claims say from now on what is paused.
--
-- Prelude  clock, window, frame, job, pause
-- Keys     control, channel
-- Args     task: name of the task; empty: the queue
--          when: when the pause ends: '+' and ms from now, or '=' and epoch ms; empty: when somebody ends it
--          by: who pauses
--          why: why it is paused, for people
--          id: 16 random characters: a repeat with the same changes nothing
--          most: how many tasks of a queue may be paused
-- Returns  1; 0 if the pause would be over at once, and -1 if so many tasks are paused already: nothing has changed. If
--          the server refused to publish, also its error

local now_us, task, when, id = read_clock(), args.task, args.when, args.id
local now_ms = math.floor(now_us / 1000)

local old, tasks, count
if task == '' then
  old = decode_table(redis.call('HGET', keys.control, 'paused'))
else
  tasks, count = read_paused_tasks(redis.call('HGET', keys.control, 'paused_tasks'), now_ms)
  old = tasks[task] or {}
end
if old.id ~= id then
  local till = 0
  if when ~= '' then
    till = tonumber(when:sub(2))
    if when:byte(1) == 43 then till = math.ceil(now_us / 1000) + till end
    if till <= now_ms then return 0 end
  end
  local is_paused = pause_till(old, now_ms)
  if task ~= '' and not is_paused and count >= tonumber(args.most) then return -1 end
  -- Whoever pauses again changes the end and the reason, not the beginning.
  local since = is_paused and tonumber(old.since) or now_ms
  -- First a command that a full server does not refuse: there, somebody may have to pause.
  redis.call('HDEL', keys.control, '')
  local new = { since = decimal(since), till = decimal(till), by = args.by, why = args.why, id = id }
  if task == '' then
    redis.call('HSET', keys.control, 'paused', cjson.encode(new))
  else
    tasks[task] = new
    redis.call('HSET', keys.control, 'paused_tasks', cjson.encode(tasks))
  end
end
local refusal = publish(keys.channel, now_ms)
return refusal and { 1, refusal } or 1
