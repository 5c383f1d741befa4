-- Part of claim: due frames are leased straight from the timeout set.
--
-- Uses     now_ms, is_ranked, limit, budget, count, byte_count, format, seed, lease, is_copy, seen
-- Fills    frames, bad, gone, unranked
-- Sets     due, doubles

local function keep_rank(token)
  for n = #unranked, 1, -1 do
    if unranked[n] == token then table.remove(unranked, n) end
  end
end

if not is_ranked then due = find_due(keys.timeout_set, keys.delay_queue, now_ms, limit - count, budget - byte_count) end
local tokens, items = {}, {}
for i, entry in ipairs(due) do
  local payload, id = unpack_frame(entry[1], format)
  frames[i] = entry[1]
  if not payload then
    bad[#bad + 1] = entry[1]
  else
    local token, mac = token_of(payload)
    -- A foreign payload is looked up like the others, so that all are leased in due order.
    local other = seed .. string.format('f%05d', i)
    tokens[#tokens + 1] = token or other
    items[#items + 1] = { other, entry[2], payload, mac, id, entry.turn }
  end
end
if #tokens > 0 then
  local headers = redis.call('HMGET', keys.headers, unpack(tokens))
  local ended = redis.call('ZMSCORE', keys.ended, unpack(tokens))
  local locators = redis.call('HMGET', keys.locators, unpack(tokens))
  for i, item in ipairs(items) do
    local token, other, start, payload, mac, its_id = tokens[i], unpack(item, 1, 5)
    if not is_score(start) then start = now_ms end
    local located, kind, id, tail, known = read_locator(locators[i])
    local is_same = mac and mac == known and id ~= UNSURE
    -- Somebody may have taken the job out and put it in again. While its own frame waits, another is a copy, or claims
    -- to be one.
    local own = is_same and id ~= its_id and find_frame(keys.timeout_set, located, kind, id, token, known)
    local is_certain, is_double = is_same and not own, false
    local is_used = is_certain and (seen[token] or headers[i])
    if is_certain or (locators[i] and not located) then gone[#gone + 1] = token end
    if is_used and not is_copy(token, payload) then is_certain = false end
    if is_certain then
      is_double = is_used or (ended[i] and how_ended(keys.ended, now_ms, token))
    else
      is_double = own and unpack_frame(own, format) == payload or (mac and is_copy(token, payload))
    end
    if is_double then
      doubles = doubles + 1
      -- The job itself waits elsewhere, and keeps its rank.
      if is_ranked and headers[i] then keep_rank(token) end
    elseif is_certain then
      lease({ token = token, attempts = 0, kills = 0, start = start, tail = tail, payload = payload, is_new = true, flags = 0,
        turn = item[6] })
    else
      lease({ token = other, attempts = 0, kills = 0, start = start, tail = '', payload = payload, is_new = true,
        flags = 1, turn = item[6] })
    end
  end
end
