-- Run dead letters or quarantined payloads again, from their first attempt. Safe to repeat.
--
-- Prelude  clock, window, frame, job
-- Keys     graves, returned, headers, payloads, channel, ended, errors, ranked, control, results...
-- Where    graves: dead or quarantine; results: one a token, the failure that was kept for callers that wait
-- Args     when: wait: '+' ms from now, or '=' epoch ms
--          request: some random characters, the same when the call is repeated
--          tokens...: of the jobs
-- Returns  how many were there, apart from those whose payload is gone, which are forgotten; if an ACL closes the
--          channel to us, a list of that number and the server's error

local now_us, request = read_clock(), args.request
local start, notes = start_time(args.when, now_us), {}

-- A repeat: the first reply was lost. What that call did is noted beside the jobs that ended, for as long.
local done = noted(keys.ended, request, #ARGV - args.tokens + 1)
if done > 0 then return done end

check_sets(keys.returned)
check_hashes(keys.headers, keys.payloads, keys.errors)
local is_ranked, replayed = has_ranks(), {}
for i = args.tokens, #ARGV do
  local token = args.tokens[i]
  local is_there = redis.call('ZREM', keys.graves, token) == 1
  if is_there and redis.call('HEXISTS', keys.payloads, token) == 1 then
    local result = KEYS[#keys + i - args.tokens + 1]
    redis.call('DEL', result)
    redis.call('ZADD', keys.returned, start, token)
    local job = job_of(token)
    job = { token = token, start = start, tail = without_unique(job and job.tail or '') }
    redis.call('HSET', keys.headers, token, write_job(job))
    replayed[#replayed + 1] = job
    notes[#notes + 1] = request .. '-' .. (#notes + 1)
  elseif is_there then
    redis.call('HDEL', keys.headers, token)
    forget_errors(keys.errors, { token })
  end
end
if #notes == 0 then return 0 end
add_ranks(replayed, is_ranked, function() return start end)
remember(keys.ended, math.floor(now_us / 1000), 'taken', notes)
local refusal = publish(keys.channel, start)
return refusal and { #notes, refusal } or #notes
