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

-- A page of at most `count` frames, behind a cursor { where, frame } that is empty at first. Returns .frames; .first, the
-- index or the rank of the first; .is_end; and, of the timeout set up to last_score, .scores.
local function read_page(key, kind, where, frame, count, budget, last_score)
  local first
  if kind == 'zset' then
    -- The least of all that come behind the frame.
    first = where == '' and 0 or rank_from(key, where, frame .. '\0')
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

-- The cursor behind the first `done` frames of a page, as two values, asked for before they are taken out; 'end' and ''
-- where no more come.
local function cursor_behind(page, key, kind, done, where, frame)
  if page.is_end and done == #page.frames then return 'end', '' end
  if done == 0 then return where, frame end
  if kind == 'tail' then return page.first - done, '' end
  local last = page.frames[done]
  if kind == 'list' then return page.first + done, last end
  return page.scores and page.scores[done] or redis.call('ZSCORE', key, last), last
end
