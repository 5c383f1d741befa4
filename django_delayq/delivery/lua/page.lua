-- Read a page of one set of a queue: bounded by number, and by what is shown of each payload.
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
-- Returns  elements in the set; then seven an element: token or ''; score; attempts that failed; leases that
--          expired; payload, cut; bytes of the whole payload; error as JSON

local set, headers, payloads, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local kind, first, count, cut = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {}

local function add(token, score, attempts, kills, payload, err)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = token, score, attempts, kills
  reply[n + 5], reply[n + 6], reply[n + 7] = payload:sub(1, cut), #payload, err
end

if kind == 'payloads' then
  reply[1] = redis.call('LLEN', set)
  for _, payload in ipairs(redis.call('LRANGE', set, first, first + count - 1)) do
    add(token_of(payload) or '', '', 0, 0, payload, '')
  end
  return reply
end
reply[1] = redis.call('ZCARD', set)
local part = redis.call(ARGV[5] == '1' and 'ZREVRANGE' or 'ZRANGE', set, first, first + count - 1, 'WITHSCORES')
for i = 1, #part, 2 do
  local member, score = part[i], part[i + 1]
  if kind == 'frames' then
    local payload, id, format = unpack_frame(member)
    local token = payload and token_of(payload)
    if payload and not token then
      local hex = id:gsub('.', function(byte) return string.format('%02x', byte:byte()) end)
      token = string.format('f%d-%.0f-%s', format, tonumber(score), hex)
    end
    add(token or '', score, 0, 0, payload or member, '')
  else
    local header = redis.call('HGET', headers, member)
    local attempts, kills = 0, 0
    if header then attempts, kills = read_header(header) end
    add(member, score, attempts, kills, redis.call('HGET', payloads, member) or '', redis.call('HGET', errors, member) or '')
  end
end
return reply
