-- Read one job, wherever it is.
--
-- Prelude  clock, count, window, frame, list, job, find
-- Keys     timeout_set, destination, leases, retries, dead, quarantine, headers, payloads, locators, errors, ended,
--          returned, held
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  token
-- Returns  state; score (start time, end of the lease, until when it is held, or when it was put aside; epoch ms);
--          attempts that failed; leases that expired; first start time (epoch ms); payload; error as JSON; unique key;
--          now (epoch ms); priority; when it was claimed (epoch ms), 0 if it is not leased or that is not known; attempts
--          behind it, the last first, one as JSON a line

local now_ms, token = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]
local job = find_job(token, now_ms)
local attempts, kills, start, tail, payload, _, claimed = 0, 0, job.score or 0, '', job.payload or '', nil, nil
if job.header then
  attempts, kills, start, _, _, tail, _, claimed = read_header(job.header)
elseif read_locator(job.locator) then
  start, _, _, tail = read_locator(job.locator)
end
if job.frame then
  payload = unpack_frame(job.frame) or job.frame
elseif not job.payload then
  payload = redis.call('HGET', keys.payloads, token) or ''
end
return { job.state, job.score or 0, attempts, kills, start, payload, redis.call('HGET', keys.errors, token) or '',
  unique_of(tail):sub(2), now_ms, priority_of(tail),
  claimed or 0, redis.call('HGET', keys.errors, HISTORY .. token) or '' }
