-- End a page of jobs that export_page.lua holds: delete them, as another server has them, or put them back. Safe to repeat.
--
-- Prelude  clock, count, window, frame, list, job, unique, held, moving
-- Keys     timeout_set, delay_queue, destination, redisson_channel, channel, retries, returned, held, held_tasks, dead,
--          quarantine, headers, payloads, locators, errors, unique, ended, counters, ranked, control, moving, moving_from
-- Args     run: id of the run
--          page: number of the page; 0: end the run itself, once none of its jobs is on its way
--          is_moved: 1: another server has them; 0: put them back
--          format: frame format of the queue, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: frames also go into the delay queue
-- Returns  how many jobs were there; or -1 if the queue has another run, or none

local now_ms, run, page, is_moved = math.floor(read_clock() / 1000), args.run, tonumber(args.page), args.is_moved == '1'

if read_run() ~= run then return -1 end
if page == 0 then
  local left = redis.call('ZCARD', keys.moving)
  if left == 0 then redis.call('HDEL', keys.control, 'moving', 'moving_to', 'confirmed') end
  return left
end

local jobs, tokens = read_moving(page)
if #tokens == 0 then return 0 end
check_sets(keys.held_tasks, keys.ended)
local head, is_ranked = before_placing()
local members, gone, ours, histories = {}, {}, {}, {}
for i, job in ipairs(jobs) do
  local its = read_job(job.header) or { start = 0, tail = '' }
  gone[i], histories[i] = job.token, HISTORY .. job.token
  members[i] = held_member(reason_of('moving', run), its.start, its.tail, job.token)
  if is_moved and not is_foreign_place(job.place) then
    ours[#ours + 1] = job.token
    release_unique(keys.unique, its.tail, job.token)
  end
end
redis.call('ZREM', keys.moving, unpack(tokens))
redis.call('HDEL', keys.moving_from, unpack(tokens))
if #jobs == 0 then return 0 end
redis.call('ZREM', keys.held, unpack(gone))
redis.call('ZREM', keys.held_tasks, unpack(members))
redis.call('HDEL', keys.headers, unpack(gone))
redis.call('HDEL', keys.payloads, unpack(gone))
redis.call('HDEL', keys.errors, unpack(gone))
redis.call('HDEL', keys.errors, unpack(histories))
if is_moved then
  -- A repeat of the call that scheduled one of them must not store it here again.
  remember(keys.ended, now_ms, 'taken', ours)
else
  place_jobs(jobs, args.format, args.listed == '1', now_ms, head, is_ranked)
end
return #jobs
