-- Prelude: a page of the frames that wait, from the delay queue in arrival order or from the timeout set by start
-- time. Needs _window.
--
-- Between two pages elements come and go, so the place to go on is told by the frame last seen, too: what was
-- taken out before it shifts everything behind it.

local PAGE_BYTES = 1048576

-- Index of the first frame of the next page. A list is searched one page back: where more was taken out meanwhile, the
-- walk may repeat frames, but never skips one.
local function resume_list(list, index, anchor, count)
  if index == 0 then return 0 end
  if redis.call('LINDEX', list, index - 1) == anchor then return index end
  local last = math.min(index, redis.call('LLEN', list))
  local first, size, done, byte_count = math.max(0, last - count), 0, 0, 0
  while last > first and byte_count < PAGE_BYTES do
    size = next_size(size, done, byte_count, PAGE_BYTES)
    local from = math.max(first, last - size)
    local part = redis.call('LRANGE', list, from, last - 1)
    for i = #part, 1, -1 do
      if part[i] == anchor then return from + i end
      done, byte_count = done + 1, byte_count + #part[i]
    end
    last = from
  end
  return first
end

local function resume_set(set, index, anchor, score)
  if index == 0 then return 0 end
  local rank = redis.call('ZRANK', set, anchor)
  if rank then return rank + 1 end
  return redis.call('ZCOUNT', set, '-inf', '(' .. score)
end

-- A page of the cursor { kind, index, anchor, score }: the frames, the index of the first, whether it is the last.
local function read_page(key, kind, index, anchor, score, count)
  local first = kind == 'list' and resume_list(key, index, anchor, count) or 0
  if kind == 'zset' then first = resume_set(key, index, anchor, score) end
  local command = kind == 'list' and 'LRANGE' or 'ZRANGE'
  local frames, byte_count, size, is_last = {}, 0, 0, false
  while #frames < count and byte_count < PAGE_BYTES and not is_last do
    size = math.min(next_size(size, #frames, byte_count, PAGE_BYTES), count - #frames)
    local from = first + #frames
    local part = redis.call(command, key, from, from + size - 1)
    for _, frame in ipairs(part) do
      frames[#frames + 1] = frame
      byte_count = byte_count + #frame
    end
    is_last = #part < size
  end
  return frames, first, is_last
end

-- The cursor behind a page, as three values: index or -1 at the end, anchor, score of the anchor.
local function cursor_behind(key, kind, index, anchor, is_last)
  if is_last then return -1, '', '' end
  return index, anchor, kind == 'zset' and redis.call('ZSCORE', key, anchor) or ''
end
