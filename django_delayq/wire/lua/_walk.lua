-- Prelude: a walk over the frames that wait, page by page.
--
-- Needs _window, _frame. Between two pages elements come and go, so a cursor is a place behind the frame last seen: its
-- index or its score, and the frame. What stays is never skipped, and may be met twice. There are three walks:
--   list  the delay queue from its head, in arrival order. What was taken out shifts all that lies behind it, so the
--         frame is searched one page back.
--   tail  the delay queue from its tail, for scripts that rewrite what they meet: no frame has to be found again, since
--         whatever is taken out moves others only to where the walk still has to come, or has been. What comes is not met.
--   zset  the timeout set by start time. Score and bytes are a place even where their member is gone.
-- Admin pages go by rank, as people jump between them; held names by name, as ZRANGEBYLEX does.

local PAGE_BYTES = 1048576

-- Index of the first frame of the next page. Where more than a page was taken out meanwhile, the walk repeats frames.
local function resume_list(list, index, frame, count)
  if index == 0 then return 0 end
  if redis.call('LINDEX', list, index - 1) == frame then return index end
  local last = math.min(index, redis.call('LLEN', list))
  local first, size, done, byte_count = math.max(0, last - count), 0, 0, 0
  while last > first and byte_count < PAGE_BYTES do
    size = next_size(size, done, byte_count, PAGE_BYTES)
    local from = math.max(first, last - size)
    local part = redis.call('LRANGE', list, from, last - 1)
    for i = #part, 1, -1 do
      if part[i] == frame then return from + i end
      done, byte_count = done + 1, byte_count + #part[i]
    end
    last = from
  end
  return first
end

-- A page of at most `count` frames, behind a cursor { where, frame } that is empty at first, and up to a score.
-- Returns .frames, .places, the index or the score of each, and .is_end.
local function read_page(key, kind, where, frame, count, budget, last_score)
  local at, step = nil, 1
  if kind == 'zset' then
    -- The least of all that come behind the frame.
    at = where == '' and 0 or rank_from(key, where, frame .. '\0')
  elseif kind == 'tail' then
    local last = redis.call('LLEN', key) - 1
    at, step = math.min(tonumber(where) or last, last), -1
  else
    at = resume_list(key, tonumber(where) or 0, frame, count)
  end
  local frames, places, byte_count, size = {}, {}, 0, 0
  local page = { frames = frames, places = places, is_end = kind == 'tail' and at < 0 }
  while #frames < count and byte_count < budget and not page.is_end do
    size = math.min(next_size(size, #frames, byte_count, budget), count - #frames)
    local part
    if kind == 'zset' then
      part = redis.call('ZRANGE', key, at, at + size - 1, 'WITHSCORES')
    elseif kind == 'tail' then
      part = redis.call('LRANGE', key, math.max(0, at - size + 1), at)
    else
      part = redis.call('LRANGE', key, at, at + size - 1)
    end
    for i = 1, size do
      if byte_count >= budget then return page end
      local found, place = part[i], at
      if kind == 'zset' then
        found, place = part[2 * i - 1], part[2 * i]
      elseif kind == 'tail' then
        found = part[#part + 1 - i]
      end
      page.is_end = not found or last_score and tonumber(place) > last_score
      if page.is_end then return page end
      frames[#frames + 1], places[#places + 1] = found, place
      at, byte_count = at + step, byte_count + #found
    end
    page.is_end = kind == 'tail' and at < 0
  end
  return page
end

-- The cursor behind the first `done` frames of a page, as two values; 'end' and '' where no more come.
local function cursor_behind(page, kind, done, where, frame)
  if page.is_end and done == #page.frames then return 'end', '' end
  if done == 0 then return where, frame end
  local place = page.places[done]
  if kind == 'tail' then return tostring(place - 1), '' end
  return kind == 'zset' and place or tostring(place + 1), page.frames[done]
end
