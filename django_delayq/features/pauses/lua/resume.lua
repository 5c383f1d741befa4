-- End the pause of a queue, or of one task on it; or forget the pauses of tasks that have ended by themselves.
--
-- Prelude  clock, window, frame, job, pause
-- Keys     control, channel
-- Args     task: name of the task; empty: the queue
--          id: 16 random characters: a repeat with the same has the same reply
--          only_over: 1: only forget what has ended by itself
-- Returns  1 if it was paused, or 0; if the server refused to publish, also its error

local task, id, is_over = args.task, args.id, args.only_over == '1'
local now_ms = math.floor(read_clock() / 1000)

local fields = redis.call('HMGET', keys.control, 'paused', 'paused_tasks', 'resumed')
if fields[3] == id then return 1 end
local was_paused
if task == '' and not is_over then
  was_paused = pause_till(decode_table(fields[1]), now_ms)
  redis.call('HDEL', keys.control, 'paused')
  if was_paused then redis.call('HSET', keys.control, 'held_till', decimal(now_ms)) end
else
  local tasks, count = read_paused_tasks(fields[2], now_ms)
  if tasks[task] then
    was_paused, tasks[task], count = true, nil, count - 1
  end
  -- First a command that a full server does not refuse.
  redis.call('HDEL', keys.control, 'paused_tasks')
  if count > 0 then redis.call('HSET', keys.control, 'paused_tasks', cjson.encode(tasks)) end
end
if not was_paused then return 0 end
redis.call('HSET', keys.control, 'resumed', id)
local refusal = publish(keys.channel, now_ms)
return refusal and { 1, refusal } or 1
