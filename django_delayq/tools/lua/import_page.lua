-- Store a page of jobs that export_page.lua has taken out of another server. Safe to repeat: the pages of a run are stored
-- in their order, and the queue remembers which was the last.
--
-- Prelude  clock, count, window, frame, list, job, held, moving
-- Keys     timeout_set, delay_queue, destination, redisson_channel, channel, retries, returned, dead, quarantine, headers,
--          payloads, locators, errors, unique, ended, counters, ranked, control
-- Args     run: id of the run
--          page: number of the page, from 1 on
--          format: frame format of the queue, 1 (dLc0) or 2 (Bc0Lc0)
--          listed: 1: frames also go into the delay queue
--          mark: a mark of this page and those before it, or nothing; without spaces
--          jobs... (place, token, score, header, payload, error, history): seven a job, as export_page.lua returns them
-- Reply    outcome: 'stored'; 'known' if the page was stored before; 'other' if the last page that was stored has this number and another
--            mark; 'early' if a page between is missing; or 'leaving' if the queue is itself on its way to another server
--          count: how many jobs are new here; for 'early' the number of the last page
--          known: how many were here already
--          shared: of how many another job has the unique key

local now_ms, run, page = math.floor(read_clock() / 1000), args.run, tonumber(args.page)
local format, listed, mark = args.format, args.listed == '1', args.mark

-- What is held here on its way elsewhere must not be taken for a job that is here.
if read_run() then return { 'leaving', 0, 0, 0 } end
local stored, its_mark = (redis.call('HGET', keys.control, 'moved:' .. run) or '0'):match('^(%d+) ?(.*)$')
local last = tonumber(stored or 0)
if page == last and its_mark ~= '' and mark ~= its_mark then return { 'other', 0, 0, 0 } end
if page <= last then return { 'known', 0, 0, 0 } end
if page > last + 1 then return { 'early', last, 0, 0 } end

-- A job that has moved away from here is remembered as taken, and may come back.
local function has_ended(token)
  local state = how_ended(keys.ended, now_ms, token)
  return state and state ~= 'taken'
end

local jobs, tokens, known = {}, {}, 0
for i = args.jobs, #ARGV, #args.jobs do
  local job = { place = args.jobs[i].place, token = args.jobs[i].token, score = tonumber(args.jobs[i].score), header = args.jobs[i].header, payload = args.jobs[i].payload,
    error = args.jobs[i].error, history = args.jobs[i].history }
  local is_known = not is_foreign_place(job.place)
    and (redis.call('HEXISTS', keys.headers, job.token) == 1 or redis.call('HEXISTS', keys.locators, job.token) == 1
      or redis.call('HEXISTS', keys.payloads, job.token) == 1 or has_ended(job.token))
  if is_known then
    known = known + 1
  else
    jobs[#jobs + 1], tokens[#tokens + 1] = job, job.token
  end
end
local head, is_ranked = before_placing()
redis.call('HSET', keys.control, 'moved:' .. run, mark == '' and page or page .. ' ' .. mark)
-- Else a claim would take a job that has come back for a copy.
if #tokens > 0 then redis.call('ZREM', keys.ended, unpack(tokens)) end
local shared = place_jobs(jobs, format, listed, now_ms, head, is_ranked)
return { 'stored', #jobs, known, shared }
