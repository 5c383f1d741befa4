-- Read one job, wherever it is.
--
-- Prelude  clock, count, window, frame, list, job, find
-- KEYS[1]  zset  timeout set: member frame, score start time (epoch ms)
-- KEYS[2]  list  destination queue
-- KEYS[3]  zset  leases: token, score end (epoch ms)
-- KEYS[4]  zset  retries: token, score start time (epoch ms)
-- KEYS[5]  zset  dead letters: token, score when
-- KEYS[6]  zset  quarantine: token, score when
-- KEYS[7]  hash  headers by token
-- KEYS[8]  hash  payloads by token
-- KEYS[9]  hash  locators by token
-- KEYS[10]  hash  errors by token
-- KEYS[11]  zset  ended: token, score epoch ms * 8 + outcome
-- KEYS[12]  zset  returned, before their first attempt: token, score start time (epoch ms)
-- KEYS[13]  zset  held: token, score until when (epoch ms)
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  token
-- Returns  state; score (start time, end of lease, until when it is held or when it was put aside, epoch ms); attempts
--          that failed; leases that expired; first start time (epoch ms); payload; error as JSON; unique key; now (epoch ms)

local keys = {
  timeout_set = KEYS[1], destination = KEYS[2], leases = KEYS[3], retries = KEYS[4], dead = KEYS[5],
  quarantine = KEYS[6], headers = KEYS[7], payloads = KEYS[8], locators = KEYS[9], errors = KEYS[10],
  ended = KEYS[11], returned = KEYS[12], held = KEYS[13],
}
local now_ms, token = math.floor(read_clock(ARGV[1]) / 1000), ARGV[2]
local job = find_job(keys, token, now_ms)
local attempts, kills, due, key, payload, _ = 0, 0, job.score or 0, '', job.payload or ''
if job.header then
  attempts, kills, due, _, _, key = read_header(job.header)
elseif read_locator(job.locator) then
  due, _, _, key = read_locator(job.locator)
end
if job.frame then
  payload = unpack_frame(job.frame) or job.frame
elseif not job.payload then
  payload = redis.call('HGET', keys.payloads, token) or ''
end
return { job.state, job.score or 0, attempts, kills, due, payload, redis.call('HGET', keys.errors, token) or '',
  key:sub(2), now_ms }
