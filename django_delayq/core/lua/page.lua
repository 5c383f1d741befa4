-- Read a page of one set of a queue, or of two in a row, bounded by number and by bytes.
--
-- Prelude  window, frame, job
-- Keys     set, headers, payloads, errors, returned, locators
-- Where    set: what is paged through; returned: what a page of frames shows before the frames
-- Args     kind: what the set holds: 'frames', 'tokens' or 'payloads'
--          first: first rank
--          count: elements
--          cut: bytes of each payload to return
--          is_reversed: 1: the highest score first
--          budget: bytes: the page ends early with the element that exceeds it
--          format: format of the queue, 1 (dLc0) or 2 (Bc0Lc0), in which a frame that fits both is read
-- Reply    total: elements in all
--          rows... (token, score, attempts, kills, payload, size, error): token or ''; attempts that failed; leases that expired; the first
--            bytes of the payload, and how many it has; error as JSON

local kind, first, count, cut = args.kind, tonumber(args.first), tonumber(args.count), tonumber(args.cut)
local is_reversed, budget = args.is_reversed == '1', tonumber(args.budget)
local range = is_reversed and 'ZREVRANGE' or 'ZRANGE'
local rows, done, byte_count = {}, 0, 0

local function add(token, score, attempts, kills, payload, err)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = token, score, attempts, kills
  rows[n + 5], rows[n + 6], rows[n + 7] = payload:sub(1, cut), #payload, err
  done = done + 1
  byte_count = byte_count + #payload
end

local function add_frame(member, score)
  local payload, id, format = unpack_frame(member, args.format)
  local token = payload and (located_token(payload, id) or foreign_name(format, score, id))
  add(token or '', score, 0, 0, payload or member, '')
end

local function add_job(token, score)
  local job = job_of(token) or {}
  add(token, score, job.attempts or 0, job.kills or 0, redis.call('HGET', keys.payloads, token) or '', redis.call('HGET', keys.errors, token) or '')
end

local function read_part(key, holds, rank)
  local size = 0
  while done < count and byte_count < budget do
    -- A token is small, and its payload is read separately.
    size = holds == 'tokens' and count or next_size(size, done, byte_count, budget)
    local from = rank + done
    local to = from + math.min(size, count - done) - 1
    local part
    if holds == 'payloads' then
      part = redis.call('LRANGE', key, from, to)
      for _, payload in ipairs(part) do add(located_token(payload) or '', '', 0, 0, payload, '') end
      if #part <= to - from then break end
    else
      part = redis.call(range, key, from, to, 'WITHSCORES')
      for i = 1, #part, 2 do
        if holds == 'frames' then
          add_frame(part[i], part[i + 1])
        elseif byte_count < budget then
          add_job(part[i], part[i + 1])
        end
      end
      if #part <= 2 * (to - from) or holds == 'tokens' then break end
    end
  end
end

local parts, total = { { key = keys.set, holds = kind } }, 0
if kind == 'frames' then table.insert(parts, is_reversed and 2 or 1, { key = keys.returned, holds = 'tokens' }) end
for _, part in ipairs(parts) do
  local length = redis.call(part.holds == 'payloads' and 'LLEN' or 'ZCARD', part.key)
  -- Ranks go on from the first part to the second.
  if first + done < total + length then read_part(part.key, part.holds, first - total) end
  total = total + length
end
return { total, rows }
