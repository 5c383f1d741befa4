-- Read a page of one set of a queue: bounded by number and by bytes.
--
-- Prelude  frame, job
-- KEYS[1]  the set: timeout set, leases, retries, dead letters, quarantine; or list  destination queue
-- KEYS[2]  hash  headers by token
-- KEYS[3]  hash  payloads by token
-- KEYS[4]  hash  errors by token
-- ARGV[1]  what the set holds: 'frames', 'tokens' or 'payloads'
-- ARGV[2]  first rank
-- ARGV[3]  elements
-- ARGV[4]  bytes of each payload to return
-- ARGV[5]  1: the highest score first
-- ARGV[6]  budget, bytes: the page ends early with the element that exceeds it
-- ARGV[7]  format of the queue, 1 (dLc0) or 2 (Bc0Lc0): a frame that is both is read as that
-- Returns  elements in the set; then seven an element: token or ''; score; attempts that failed; leases that
--          expired; payload, cut; bytes of the whole payload; error as JSON

local set, headers, payloads, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local kind, first, count, cut = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local range, budget = ARGV[5] == '1' and 'ZREVRANGE' or 'ZRANGE', tonumber(ARGV[6])
local reply, done, byte_count = {}, 0, 0

local function add(token, score, attempts, kills, payload, err)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = token, score, attempts, kills
  reply[n + 5], reply[n + 6], reply[n + 7] = payload:sub(1, cut), #payload, err
  done, byte_count = done + 1, byte_count + #payload
end

local function add_frame(member, score)
  local payload, id, format = unpack_frame(member, ARGV[7])
  local token = payload and token_of(payload)
  if payload and not token then
    local hex = id:gsub('.', function(byte) return string.format('%02x', byte:byte()) end)
    token = string.format('f%d-%.0f-%s', format, tonumber(score), hex)
  end
  add(token or '', score, 0, 0, payload or member, '')
end

local function add_job(token, score)
  local header = redis.call('HGET', headers, token)
  local attempts, kills = 0, 0
  if header then attempts, kills = read_header(header) end
  add(token, score, attempts, kills, redis.call('HGET', payloads, token) or '', redis.call('HGET', errors, token) or '')
end

reply[1] = redis.call(kind == 'payloads' and 'LLEN' or 'ZCARD', set)
-- An element is copied to Lua whole, however little of it is returned: a page of huge ones would hold the server for
-- long. So the first few tell how many more may be read at a time.
local size = kind == 'tokens' and count or 4
while done < count and byte_count < budget do
  local from = first + done
  local to = from + math.min(size, count - done) - 1
  if kind == 'payloads' then
    local part = redis.call('LRANGE', set, from, to)
    for _, payload in ipairs(part) do add(token_of(payload) or '', '', 0, 0, payload, '') end
    if #part <= to - from then break end
  else
    local part = redis.call(range, set, from, to, 'WITHSCORES')
    for i = 1, #part, 2 do
      if kind == 'frames' then
        add_frame(part[i], part[i + 1])
      elseif byte_count < budget then
        add_job(part[i], part[i + 1])
      end
    end
    if #part <= 2 * (to - from) or kind == 'tokens' then break end
  end
  size = math.max(1, math.floor((budget - byte_count) * done / (byte_count + 1)))
end
return reply
