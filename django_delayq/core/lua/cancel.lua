-- Cancel jobs that are not running. Those in the delay queue share a scan of it.
--
-- Prelude  clock, count, window, frame, list, job, unique, find, held, limit, batch, cancel, ended, settle
-- Keys     timeout_set, delay_queue, destination, leases, retries, dead, quarantine, headers, payloads, locators,
--          errors, notes, unique, ended, counters, returned, held, held_tasks, ranked, control, channel, slots,
--          paces, batches, last_ended?, results...
-- Where    last_ended: only if the queue remembers the jobs that ended last; results: one for each job whose record is
--          kept, in their order
-- Args     keep_ended: how many jobs that ended the queue remembers
--          text: what a record says of the end, as JSON
--          jobs... (token, ttl_ms): token, all different; how long its record is kept (ms) or empty
-- Returns  for each 'cancelled'; 'noted' if it lies in a long destination queue, and will not run unless Java takes it;
--          or the state in which it was left

local now_ms = math.floor(read_clock() / 1000)

-- Reads. One look through the destination queue serves all jobs of a call.
local lying, is_all
local function find_lying(destination, token, place)
  if not lying then
    lying = {}
    is_all = look_through(destination, function(payload)
      local found, mac = token_of(payload)
      if found and not lying[found .. mac] then lying[found .. mac] = payload end
    end)
  end
  return lying[token .. place.mac], is_all
end

-- The payload of a job that find_job() has found, and the attempts behind it.
local function what_is_kept(token, job)
  local payload = job.payload or job.frame and unpack_frame(job.frame) or redis.call('HGET', keys.payloads, token)
  return { payload or '', redis.call('HGET', keys.errors, HISTORY .. token) or '' }
end

local jobs, tokens, kept, results = {}, {}, {}, #keys
for i = args.jobs, #ARGV, #args.jobs do
  local n = (i - args.jobs) / #args.jobs + 1
  tokens[n], jobs[n] = args.jobs[i].token, find_job(args.jobs[i].token, now_ms, #ARGV >= args.jobs + #args.jobs and find_lying)
  if args.jobs[i].ttl_ms ~= '' then
    results = results + 1
    kept[n] = { KEYS[results], args.jobs[i].ttl_ms, what_is_kept(args.jobs[i].token, jobs[n]) }
  end
end
local records, each = {}, nil
if keys.last_ended then
  each = function(token, payload) records[#records + 1] = end_record(token, payload, 'cancelled', now_ms) end
end
local replies = cancel_found(jobs, tokens, now_ms, each)
for n, record in pairs(kept) do
  if replies[n] == 'cancelled' and record[3][1] ~= '' then keep_result(record[1], args.text, record[2], unpack(record[3])) end
end
if #records > 0 then add_records(keys.last_ended, records, tonumber(args.keep_ended)) end
return replies
