-- Prelude: what all ends of an attempt share.
--
-- Needs _window, _frame, _job. A script that uses this gets the jobs in its list `jobs`, each with .token and .fence.

-- Returns the jobs whose lease is still the caller's, with what their headers say, and .at, where their arguments begin;
-- and the indexes of the others. till: where the list ends, if it is not the last.
local function ours(till)
  local held, lost = {}, {}
  local tokens = {}
  for i = args.jobs, till or #ARGV, #args.jobs do tokens[#tokens + 1] = args.jobs[i].token end
  if #tokens == 0 then return held, lost end
  local found = redis.call('HMGET', keys.headers, unpack(tokens))
  local seen = {}
  for n, token in ipairs(tokens) do
    local at = args.jobs + (n - 1) * #args.jobs
    local attempts, kills, start, fence, owner, tail, _, claimed = unpack_header(found[n])
    if fence == args.jobs[at].fence and not seen[token] then
      seen[token] = true
      held[#held + 1] = { token = token, attempts = attempts, kills = kills, start = start, owner = owner, tail = tail, at = at,
        claimed = claimed }
    else
      lost[#lost + 1] = n - 1
    end
  end
  return held, lost
end

-- The jobs that ours() has found, by their index among the arguments, from 0.
local function by_index(jobs)
  local found = {}
  for _, job in ipairs(jobs) do found[(job.at - args.jobs) / #args.jobs] = job end
  return found
end

local function tokens_of(jobs)
  local tokens = {}
  for i, job in ipairs(jobs) do tokens[i] = job.token end
  return tokens
end

-- Behind these: what else is kept of the job.
local function keep_result(key, text, ttl_ms, ...)
  redis.call('DEL', key)
  redis.call('RPUSH', key, text, ...)
  redis.call('PEXPIRE', key, ttl_ms)
end
