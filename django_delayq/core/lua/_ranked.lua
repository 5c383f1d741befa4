-- Part of claim: on a queue with priorities, choose the jobs that come first, whatever lies before them.
--
-- Uses     now_ms, limit, budget, format, count, byte_count, is_full, take_up
-- Fills    due, retried, returned, unranked, reranked
-- Sets     reserved, turn

-- What was not ranked yet counts only once it is among so many that are due.
local step_ms = tonumber(args.priority_step_ms)
local LOOKED_THROUGH = 100
local LOOKED_BYTES = 262144
-- Priorities from 100 to -100; a rank beyond them is none of ours.
local LEVELS = 201
-- So many of a level are read at least: ranks of jobs that have gone cost no claim each.
local LEAST = 32

-- Others have put elements into the destination queue: one of them has its turn.
local before, room = count, limit - count
local is_offered = redis.call('LLEN', keys.destination) > 0
local has_one = room == 1
if room > 1 and is_offered then room = room - 1 end
-- The first that wait in the timeout set are read in one go, which spares a search for each.
local window = {}
if room > 0 then
  window = find_due(keys.timeout_set, keys.delay_queue, now_ms, math.max(room, LOOKED_THROUGH),
    math.min(budget, LOOKED_BYTES))
end
local frame_of, candidates = {}, {}

-- The highest priority comes first, or what has waited longest if each point of priority is worth a time.
local function add(priority, start, token, frame, set)
  local first = step_ms and start - priority * step_ms or (100 - priority) * LEVEL + start
  candidates[#candidates + 1] = { first, #candidates, start = start, token = token, frame = frame, set = set, priority = priority }
end

-- Adds what is due and not ranked, as priority 0; and what is due by its place and not by its rank: somebody who knows
-- no ranks has moved it, or has taken it out and put it in again.
local function add_unranked(tokens, items)
  if #tokens == 0 then return end
  local ranks = redis.call('ZMSCORE', keys.ranked, unpack(tokens))
  for i, item in ipairs(items) do
    local rank = item.token and tonumber(ranks[i] or nil)
    if not rank then
      add(0, item.start, item.token, item.frame, item.set)
    elseif not (rank >= 0 and rank < LEVELS * LEVEL and rank % LEVEL <= now_ms) then
      local priority = math.max(-100, math.min(100 - math.floor(rank / LEVEL), 100))
      add(priority, item.start, item.token, item.frame, item.set)
    end
  end
end

local tokens, items = {}, {}
for i, entry in ipairs(window) do
  local payload = unpack_frame(entry[1], format)
  local token = payload and token_of(payload)
  if token then frame_of[token] = entry end
  -- What is no job has a rank under no name.
  tokens[i], items[i] = token or '', { start = entry[2], token = token, frame = entry }
end
add_unranked(tokens, items)
for _, set in ipairs({ keys.retries, keys.returned }) do
  local found = redis.call('ZRANGEBYSCORE', set, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, math.max(room, LOOKED_THROUGH))
  tokens, items = {}, {}
  for i = 1, #found, 2 do
    tokens[#tokens + 1] = found[i]
    items[#items + 1] = { start = tonumber(found[i + 1]), token = found[i], set = set }
  end
  add_unranked(tokens, items)
end

-- Each level that has members, from the highest priority. With ageing, all of them may have the job that comes first.
local from, enough, reaches = '0', room, {}
while room > 0 do
  local head = redis.call('ZRANGEBYSCORE', keys.ranked, from, '(' .. decimal(LEVELS * LEVEL), 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not head then break end
  local level = math.floor(tonumber(head) / LEVEL)
  local most = step_ms and LEAST or math.max(enough, LEAST)
  local found = redis.call('ZRANGEBYSCORE', keys.ranked, level * LEVEL, decimal(level * LEVEL + math.min(now_ms, LEVEL - 1)),
    'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #found, 2 do add(100 - level, tonumber(found[i + 1]) - level * LEVEL, found[i]) end
  if #found == 2 * most then
    -- More of this level may come before what is behind its last.
    reaches[#reaches + 1] = candidates[#candidates][1]
  end
  if not step_ms then
    enough = enough - #found / 2
    if enough <= 0 then break end
  end
  from = decimal((level + 1) * LEVEL)
end

table.sort(candidates, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
local reach, byte_total = math.min(math.huge, unpack(reaches)), byte_count
-- With room for one, an element in the destination queue gives way only to what is more urgent than it.
if has_one and is_offered and (step_ms or not (candidates[1] and candidates[1].priority > 0)) then room = 0 end

local function is_enough()
  return is_full() or count - before + reserved >= room or byte_total >= budget or #unranked + #reranked >= MOST
end

local function choose(entry)
  entry.turn = turn
  due[#due + 1] = entry
  reserved, byte_total = #due, byte_total + #entry[1]
end

local function take_from(set, token, score)
  if set == keys.retries then
    retried[#retried + 1] = token
  else
    returned[#returned + 1] = token
  end
  unranked[#unranked + 1] = token
  take_up(token, score)
end

local function rank_anew(token, start, tail)
  reranked[#reranked + 1] = rank_of(priority_of(tail or ''), start)
  reranked[#reranked + 1] = token
end

-- The headers and locators of ranked jobs, read for as many as this claim may take.
local headers, locators, read_to = {}, {}, 0

local function read_ranked(from)
  local tokens = {}
  read_to = math.min(from + math.max(room, LEAST) - 1, #candidates)
  for i = from, read_to do
    local item = candidates[i]
    if item.token and not item.set and not item.frame and not frame_of[item.token] then tokens[#tokens + 1] = item.token end
  end
  if #tokens == 0 then return end
  local found, places = redis.call('HMGET', keys.headers, unpack(tokens)), redis.call('HMGET', keys.locators, unpack(tokens))
  for i, token in ipairs(tokens) do headers[token], locators[token] = found[i], places[i] end
end

-- A ranked job is looked up: since it was ranked, somebody may have moved it or taken it away.
local function take_ranked(token)
  local header = headers[token]
  if header then
    local job = read_job(header)
    for _, set in ipairs({ keys.retries, keys.returned }) do
      local start = tonumber(redis.call('ZSCORE', set, token) or nil)
      if start and start <= now_ms then return take_from(set, token, start) end
      if start then return rank_anew(token, start, job and job.tail) end
    end
  else
    local place = read_locator(locators[token])
    local frame = place and find_frame(keys.timeout_set, place, token)
    if frame and place.start > now_ms then return rank_anew(token, place.start, place.tail) end
    if frame then choose({ frame, place.start }) end
  end
  unranked[#unranked + 1] = token
end

local chosen = {}
for n, item in ipairs(candidates) do
  if is_enough() or item[1] > reach then break end
  if n > read_to then read_ranked(n) end
  turn = turn + 1
  local token = item.token
  local entry = item.frame or not item.set and frame_of[token]
  if token and chosen[token] then
    -- A copy of the frame waits as well.
    if item.frame then choose(entry) end
  elseif entry then
    choose(entry)
    if token then unranked[#unranked + 1] = token end
  elseif item.set then
    take_from(item.set, token, item.start)
  else
    take_ranked(token)
  end
  if token then chosen[token] = true end
end
