-- Prelude: jobs that move to another server. docs/internals.md, "Moving".
--
-- Needs _clock, _count, _window, _frame, _list, _job, _held. A job on its way is held for its
-- run. Two keys say the rest: `moving` is a set of tokens, by the page that they are in; `moving_from` says for each
-- where the job was:
--   a letter | its score there, decimal | '\0' | its error, or nothing
-- w a frame or the destination queue, a job of ours before its first attempt; f, m, l of somebody else: a frame, a member
-- that is no frame, an element of the destination queue; r retries; e returned; h held, or leased by
-- a process that has gone; d dead letters; q quarantine.
-- The field 'moving' of the control hash is the id of the run, a space, its kind, a space, and how many pages it has;
-- 'moving_to' is the name of the server that it goes to. The field 'confirmed' is the code of the export of which the run is
-- a part, once another server is known to have all of it.

local WHY_MOVING = 'It is on its way to another server.'

local function read_run()
  local run, kind, pages = (redis.call('HGET', keys.control, 'moving') or ''):match('^(%S+) (%a+) (%d+)$')
  return run, kind, tonumber(pages or 0)
end

-- The jobs of a page that are still on their way, each a table; and all tokens of the page.
local function read_moving(page)
  local tokens, jobs = redis.call('ZRANGEBYSCORE', keys.moving, page, page), {}
  if #tokens == 0 then return jobs, tokens end
  local fields = {}
  for i, token in ipairs(tokens) do fields[i] = HISTORY .. token end
  local origins, held = redis.call('HMGET', keys.moving_from, unpack(tokens)), redis.call('ZMSCORE', keys.held, unpack(tokens))
  local headers, payloads = redis.call('HMGET', keys.headers, unpack(tokens)), redis.call('HMGET', keys.payloads, unpack(tokens))
  local histories = redis.call('HMGET', keys.errors, unpack(fields))
  for i, token in ipairs(tokens) do
    local place, score, failure = (origins[i] or ''):match('^(%l)([^%z]*)%z(.*)$')
    if place and held[i] and headers[i] and payloads[i] then
      jobs[#jobs + 1] = { place = place, token = token, score = tonumber(score), header = headers[i], payload = payloads[i],
        error = failure, history = histories[i] or '' }
    end
  end
  return jobs, tokens
end

local function is_foreign_place(place)
  return place == 'f' or place == 'm' or place == 'l'
end

-- What place_jobs() reads, before the first write of its caller. Returns the start time of the first frame, and whether
-- the queue ranks its jobs.
local function before_placing()
  local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
  redis.call('LLEN', keys.delay_queue)
  redis.call('LLEN', keys.destination)
  check_hashes(keys.headers, keys.payloads, keys.errors, keys.unique, keys.locators, keys.counters)
  check_sets(keys.retries, keys.returned, keys.dead, keys.quarantine)
  return head and tonumber(head) or math.huge, has_ranks()
end

-- Puts jobs where their letters say. What was held is due, as the next claim decides anew whether it may run. Returns of
-- how many another job has the unique key: these run without it.
local function place_jobs(jobs, format, listed, now_ms, head, is_ranked)
  local shared, fresh, waits = 0, 0, {}
  local sets = { r = {}, e = {}, d = {}, q = {} }
  local hashes = { headers = {}, payloads = {}, errors = {}, unique = {}, locators = {} }
  local function keep(hash, field, value)
    hash[#hash + 1] = field
    hash[#hash + 1] = value
  end
  for _, job in ipairs(jobs) do
    local its = read_job(job.header)
    if its and not is_foreign_place(job.place) and job.place ~= 'd' and job.place ~= 'q' then
      local before, tail = its.tail, with_unique(its.tail)
      local key = unique_of(tail):sub(2)
      local holder = key ~= '' and redis.call('HGET', keys.unique, key)
      if holder and holder ~= job.token
          and (redis.call('HEXISTS', keys.headers, holder) == 1 or redis.call('HEXISTS', keys.locators, holder) == 1) then
        shared, tail = shared + 1, without_unique(tail)
      elseif key ~= '' then
        keep(hashes.unique, key, job.token)
      end
      if tail ~= before then
        its.tail, its.fence, its.claimed = tail, nil, nil
        job.header = write_job(its)
      end
    end
    job.tail, job.due = its and its.tail or '', job.score
    if job.place == 'h' then
      job.place = waiting_set('r', 'e', its and its.attempts or 0, its and its.kills or 0)
      job.due = math.min(its and its.start or now_ms, now_ms)
    end
    if job.place == 'w' or job.place == 'f' then fresh = fresh + 1 end
  end

  local number = fresh > 0 and next_numbers(keys.delay_queue, keys.counters, fresh, now_ms) or 0
  local members, frames, lying, first, soonest = {}, {}, {}, math.huge, math.huge
  for _, job in ipairs(jobs) do
    local set = sets[job.place]
    if set then
      keep(set, string.format('%.17g', job.due), job.token)
      if job.header ~= '' then keep(hashes.headers, job.token, job.header) end
      keep(hashes.payloads, job.token, job.payload)
      if job.error ~= '' then keep(hashes.errors, job.token, job.error) end
      if job.history ~= '' then keep(hashes.errors, HISTORY .. job.token, job.history) end
      if job.place == 'r' or job.place == 'e' then
        waits[#waits + 1] = job
        soonest = math.min(soonest, job.due)
      end
    elseif job.place == 'l' then
      lying[#lying + 1] = job.payload
    else
      local frame = job.payload
      if job.place ~= 'm' then
        number = number + 1
        frame = pack_frame(format, listed, number, job.payload)
      end
      if job.place == 'w' then
        local _, mac = token_of(job.payload)
        local id = struct.pack('>c2I6', listed and LISTED or UNLISTED, number)
        local place = { start = job.due, format = tonumber(format), id = id, mac = mac or NO_MAC, tail = job.tail }
        keep(hashes.locators, job.token, write_locator(place))
        waits[#waits + 1] = job
      end
      keep(members, string.format('%.17g', job.due), frame)
      frames[#frames + 1] = frame
      first = math.min(first, job.due)
    end
  end
  if #members > 0 then redis.call('ZADD', keys.timeout_set, 'NX', unpack(members)) end
  if #frames > 0 and listed then redis.call('RPUSH', keys.delay_queue, unpack(frames)) end
  if #lying > 0 then redis.call('RPUSH', keys.destination, unpack(lying)) end
  if #sets.r > 0 then redis.call('ZADD', keys.retries, unpack(sets.r)) end
  if #sets.e > 0 then redis.call('ZADD', keys.returned, unpack(sets.e)) end
  if #sets.d > 0 then redis.call('ZADD', keys.dead, unpack(sets.d)) end
  if #sets.q > 0 then redis.call('ZADD', keys.quarantine, unpack(sets.q)) end
  if #hashes.headers > 0 then redis.call('HSET', keys.headers, unpack(hashes.headers)) end
  if #hashes.payloads > 0 then redis.call('HSET', keys.payloads, unpack(hashes.payloads)) end
  if #hashes.errors > 0 then redis.call('HSET', keys.errors, unpack(hashes.errors)) end
  if #hashes.unique > 0 then redis.call('HSET', keys.unique, unpack(hashes.unique)) end
  if #hashes.locators > 0 then redis.call('HSET', keys.locators, unpack(hashes.locators)) end
  add_ranks(waits, is_ranked, function(job) return job.due end)
  if first < head then publish(keys.redisson_channel, first) end
  if soonest < math.huge then publish(keys.channel, soonest) end
  return shared
end
