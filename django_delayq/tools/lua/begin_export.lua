-- Begin to move what a queue holds, or go on with the run that has begun. Safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, held, moving
-- Keys     control
-- Args     run: id of a new run
--          kind: its kind: 'file' or 'direct'
--          target: the name of the server that it goes to; empty for a file
-- Reply    id: the run of the queue, this one or that which has begun before
--          kind: its kind
--          pages: how many it has
--          target: the name of the server that it goes to, or ''

local run, kind, pages = read_run()
if not run then
  run, kind, pages = args.run, args.kind, 0
  -- A full server lets a script go on that begins with a command that frees memory: jobs can always be taken off it.
  redis.call('HDEL', keys.control, 'moving', 'moving_to', 'confirmed')
  redis.call('HSET', keys.control, 'moving', run .. ' ' .. kind .. ' 0', 'moving_to', args.target)
end
return { run, kind, pages, redis.call('HGET', keys.control, 'moving_to') or '' }
