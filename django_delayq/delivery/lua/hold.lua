-- Hold jobs whose tasks, or whose keys, the caller does not know for a worker that does. How long counts from the
-- first time that a job was held for so long, whoever held it: one that was held for as long as it takes had no time yet.
-- A job that was signed with another key since the caller read it is not held for the old one: it is due again.
--
-- Prelude  clock, window, frame, job, settle, held
-- KEYS[1]  zset  leases: token, score end (epoch ms)
-- KEYS[2]  hash  headers by token
-- KEYS[3]  zset  held: token, score until when (epoch ms)
-- KEYS[4]  zset  held by task: name of the task, start time and token, a zero byte between them; score 0
-- KEYS[5]  hash  errors by token
-- KEYS[6]  hash  payloads by token
-- KEYS[7]  zset  retries: token, score start time (epoch ms)
-- KEYS[8]  zset  returned, before their first attempt: token, score start time (epoch ms)
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  and on, five a job: token; fencing token; name of the task or the key; why it is held; how long, ms,
--          or empty for as long as it takes
-- Returns  indexes of the jobs whose lease was lost; nothing was changed for those

local leases, headers, held, held_tasks, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local payloads, retries, returned = KEYS[6], KEYS[7], KEYS[8]
local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

local jobs, lost = ours(headers, 2, 5)
if #jobs == 0 then return lost end
local before = redis.call('HMGET', errors, unpack(tokens_of(jobs)))
check_sets(held, held_tasks, retries, returned)
local is_signed_anew = {}
for _, job in ipairs(jobs) do
  local key = key_named(ARGV[job.at + 2])
  local found = key and key_of(redis.call('HGET', payloads, job.token))
  is_signed_anew[job.token] = found and found ~= key
end
redis.call('ZREM', leases, unpack(tokens_of(jobs)))
for i, job in ipairs(jobs) do
  local name, hold_ms, since_ms = ARGV[job.at + 2], tonumber(ARGV[job.at + 4]), held_since(before[i])
  if hold_ms then since_ms = since_ms or now_ms end
  redis.call('HSET', headers, job.token,
    struct.pack(HEADER, job.attempts, job.kills, job.due, NOBODY, NOBODY) .. job.key)
  if is_signed_anew[job.token] then
    local waiting = waiting_set(retries, returned, job.attempts, job.kills)
    redis.call('ZADD', waiting, math.min(job.due, now_ms), job.token)
  else
    redis.call('ZADD', held, hold_ms and since_ms + hold_ms or now_ms + FOR_EVER, job.token)
    redis.call('ZADD', held_tasks, 0, held_member(name, job.due, job.token))
    redis.call('HSET', errors, job.token, held_error(name, ARGV[job.at + 3], now_ms, since_ms))
  end
end
return lost
