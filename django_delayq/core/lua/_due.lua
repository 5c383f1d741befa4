-- Part of claim: due frames are leased straight from the timeout set.
--
-- Uses     now_ms, is_ranked, limit, budget, count, byte_count, format, lease, is_copy, seen
-- Fills    frames, bad, gone, unranked
-- Sets     due, doubles

local function keep_rank(token)
  for n = #unranked, 1, -1 do
    if unranked[n] == token then table.remove(unranked, n) end
  end
end

if not is_ranked then due = find_due(keys.timeout_set, keys.delay_queue, now_ms, limit - count, budget - byte_count) end
-- The name of a payload that is no job, or not the job that it says.
local function other_name(n)
  return args.seed .. string.format('f%05d', n)
end

-- For each payload: the token to look it up by, so that all are leased in due order, whoever they are of; the job that it
-- becomes; its MAC and the 8 bytes of its frame, for a payload without MAC an empty string.
local tokens, jobs, macs, ids, known_count = {}, {}, {}, {}, 0
for i, entry in ipairs(due) do
  local frame = entry[1]
  local payload, id = unpack_frame(frame, format)
  frames[i] = frame
  if not payload then
    bad[#bad + 1] = frame
  else
    local token, mac = token_of(payload)
    token = token or other_name(i)
    known_count = known_count + 1
    tokens[known_count], macs[known_count], ids[known_count] = token, mac or '', id
    jobs[known_count] = { token = token, attempts = 0, kills = 0, start = entry[2], tail = '', payload = payload, is_new = true,
      flags = 0, turn = entry.turn }
  end
end
if known_count > 0 then
  local headers = redis.call('HMGET', keys.headers, unpack(tokens))
  local ended = redis.call('ZMSCORE', keys.ended, unpack(tokens))
  local locators = redis.call('HMGET', keys.locators, unpack(tokens))
  for i, job in ipairs(jobs) do
    local token, payload, mac, its_id = tokens[i], job.payload, macs[i], ids[i]
    if not is_score(job.start) then job.start = now_ms end
    local located, kind, id, tail, known = unpack_locator(locators[i])
    local is_same = mac == known and id ~= UNSURE
    -- Somebody may have taken the job out and put it in again. While its own frame waits, another is a copy, or claims
    -- to be one.
    local own = is_same and id ~= its_id and find_frame(keys.timeout_set, read_locator(locators[i]), token)
    local is_certain, is_double = is_same and not own, false
    local is_used = is_certain and (seen[token] or headers[i])
    if is_certain or (locators[i] and not located) then gone[#gone + 1] = token end
    if is_used and not is_copy(token, payload) then is_certain = false end
    if is_certain then
      is_double = is_used or (ended[i] and how_ended(keys.ended, now_ms, token))
    else
      is_double = own and unpack_frame(own, format) == payload or (mac ~= '' and is_copy(token, payload))
    end
    if is_double then
      doubles = doubles + 1
      -- The job itself waits elsewhere, and keeps its rank.
      if is_ranked and headers[i] then keep_rank(token) end
    elseif is_certain then
      job.tail = tail
      lease(job)
    else
      job.token, job.flags = other_name(i), 1
      lease(job)
    end
  end
end
