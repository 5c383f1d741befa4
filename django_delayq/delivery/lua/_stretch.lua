-- Prelude: a stretch of the frames that wait, for scripts that read or rewrite all of them. Needs _window, _frame.
--
-- Between two calls elements come and go. The delay queue is walked from its tail to its head: whatever is taken out
-- moves those behind it towards the head, so none is passed by. The timeout set is walked in its own order, and the
-- place to go on is the score and the bytes of the member last seen, not its rank: they name a place even when that
-- member is gone.

-- From an index towards the head; the tail where there is none. Returns entries with .frame and .index.
local function read_list(list, index, count, budget)
  local last = redis.call('LLEN', list) - 1
  local at = index and math.min(index, last) or last
  local entries, byte_count, size = {}, 0, 0
  while at >= 0 and #entries < count and byte_count < budget do
    size = math.min(next_size(size, #entries, byte_count, budget), count - #entries)
    local from = math.max(0, at - size + 1)
    local part = redis.call('LRANGE', list, from, at)
    for i = #part, 1, -1 do
      if byte_count >= budget then break end
      entries[#entries + 1] = { frame = part[i], index = at }
      at, byte_count = at - 1, byte_count + #part[i]
    end
  end
  return entries, at < 0
end

-- From behind a place on, up to a score. Returns entries with .frame and .score, and whether it is the end.
local function read_set(set, score, place, limit, count, budget)
  -- The least of all that come behind it.
  local at = score == '' and 0 or rank_from(set, score, place .. '\0')
  local entries, byte_count, size = {}, 0, 0
  while #entries < count and byte_count < budget do
    size = math.min(next_size(size, #entries, byte_count, budget), count - #entries)
    local part = redis.call('ZRANGE', set, at, at + size - 1, 'WITHSCORES')
    for i = 1, #part, 2 do
      if byte_count >= budget then return entries, false end
      if tonumber(part[i + 1]) > limit then return entries, true end
      entries[#entries + 1] = { frame = part[i], score = part[i + 1] }
      at, byte_count = at + 1, byte_count + #part[i]
    end
    if #part < 2 * size then return entries, true end
  end
  return entries, false
end

-- kind 'list' or 'zset'; where: an index or a score, '' at first; place: the member last seen.
local function read_stretch(key, kind, where, place, limit, count, budget)
  if kind == 'list' then return read_list(key, tonumber(where), count, budget) end
  return read_set(key, where, place, tonumber(limit), count, budget)
end

-- Where to go on behind the first `done` entries: an index or a score, and a member; 'end' and '' at the end.
local function place_behind(kind, entries, done, is_end, where, place)
  if is_end and done == #entries then return 'end', '' end
  local last = entries[done]
  if not last then return where, place end
  if kind == 'list' then return tostring(last.index - 1), '' end
  return last.score, last.frame
end
