-- Prelude: a walk over the frames that wait, page by page.
--
-- Needs _window, _frame. Elements come and go between two pages, so a cursor is the place behind the frame seen last:
-- the frame, with its index or its score. A walk may repeat a frame that stays, and never skips one. There are three:
--   list  the delay queue from its head, in arrival order. Each removal shifts all frames behind it, so the frame seen
--         last is searched for: one page back, then from the head.
--   tail  the delay queue from its tail, for scripts that rewrite what they meet. No frame has to be found again: a
--         removal moves other frames only within the part still to come, or the part done. New frames are not met.
--   zset  the timeout set by start time. Score and bytes mark a place even if their member is gone.
-- Admin pages go by rank, as people jump between pages; held names by name, as ZRANGEBYLEX does.

local PAGE_BYTES = 1048576

-- Index of the first frame of the next page. If the frame seen last was taken out, and no more than a page before it, the
-- walk repeats frames.
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
  local at = first > 0 and redis.call('LPOS', list, frame, 'MAXLEN', first)
  return at and at + 1 or first
end

-- Rank of the first frame of the next page. A frame that is still there is not searched for: the search would compare it
-- with itself in Lua, which takes 35 ms for a megabyte.
local function resume_set(set, score, frame)
  if score == '' then return 0 end
  if redis.call('ZSCORE', set, frame) == score then return redis.call('ZRANK', set, frame) + 1 end
  -- These bytes are the least of all behind the frame.
  return (rank_from(set, score, frame .. '\0'))
end

-- A page of at most `count` frames behind a cursor { where, frame }, which is empty at first. Returns .frames; .first,
-- the index or rank of the first; .is_end; and .scores, if the timeout set is read up to last_score.
local function read_page(key, kind, where, frame, count, budget, last_score)
  local first
  if kind == 'zset' then
    first = resume_set(key, where, frame)
  elseif kind == 'tail' then
    local last = redis.call('LLEN', key) - 1
    first = math.min(tonumber(where) or last, last)
  else
    first = resume_list(key, tonumber(where) or 0, frame, count)
  end
  local frames, scores, byte_count, size = {}, last_score and {}, 0, 0
  local page = { frames = frames, first = first, scores = scores, is_end = kind == 'tail' and first < 0 }
  while #frames < count and byte_count < budget and not page.is_end do
    size = math.min(next_size(size, #frames, byte_count, budget), count - #frames)
    local part
    if kind == 'tail' then
      local at = first - #frames
      part = redis.call('LRANGE', key, math.max(0, at - size + 1), at)
      for i = #part, 1, -1 do
        if byte_count >= budget then return page end
        frames[#frames + 1], byte_count = part[i], byte_count + #part[i]
      end
      page.is_end = at < size
    elseif last_score then
      local at = first + #frames
      part = redis.call('ZRANGE', key, at, at + size - 1, 'WITHSCORES')
      for i = 1, #part, 2 do
        if byte_count >= budget then return page end
        page.is_end = tonumber(part[i + 1]) > last_score
        if page.is_end then return page end
        frames[#frames + 1], byte_count = part[i], byte_count + #part[i]
        scores[#frames] = part[i + 1]
      end
      page.is_end = #part < 2 * size
    else
      local at = first + #frames
      part = redis.call(kind == 'zset' and 'ZRANGE' or 'LRANGE', key, at, at + size - 1)
      for _, found in ipairs(part) do
        frames[#frames + 1], byte_count = found, byte_count + #found
      end
      page.is_end = #part < size
    end
  end
  return page
end

-- The cursor behind the first `done` frames of a page, as two values; 'end' and '' if no more frames come. To be asked
-- for before frames are taken out.
local function cursor_behind(page, key, kind, done, where, frame)
  if page.is_end and done == #page.frames then return 'end', '' end
  if done == 0 then return where, frame end
  if kind == 'tail' then return page.first - done, '' end
  local last = page.frames[done]
  if kind == 'list' then return page.first + done, last end
  return page.scores and page.scores[done] or redis.call('ZSCORE', key, last), last
end
