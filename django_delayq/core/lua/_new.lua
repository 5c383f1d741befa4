-- Prelude: writing new jobs into a queue, for scripts that get jobs as arguments.
--
-- Needs _clock, _count, _window, _frame, _list, _job.
-- Args     new (token, when, tail, payload): how each of these lists begins. when: '+' ms from now, or '=' epoch ms

-- Raises what pcall() has caught. From Redis 7 on, pcall() turns the error of a command into its text, and error() would put
-- a code of its own before the text of that.
local function raise(refusal)
  error(redis.REDIS_VERSION_NUM and { err = refusal } or refusal, 0)
end

-- One look through the destination queue serves all keys that are held: each look may read a megabyte.
local lying, is_all

-- Whether the holder of a unique key waits or runs, and Java has not taken it.
local function is_alive(token)
  if redis.call('HEXISTS', keys.headers, token) == 1 then return true end
  local place = place_of(token)
  if not place then return false end
  if find_frame(keys.timeout_set, place, token) then return true end
  if not lying then lying, is_all = tokens_lying(keys.destination) end
  return lying[token .. place.mac] or not is_all
end

-- Writes the jobs whose arguments begin at places[n] to be due at starts[n]. listed: also in the delay queue.
-- is_ranked: the queue has priorities, so all of them are ranked, and not only those with one. Returns the first of these times. The caller has
-- checked the types of the keys, and publishes. If an ACL refuses one of the writes, those before it are undone: a frame
-- without its locator would run, and a repeat would store its job once more.
local function store_new(places, starts, format, listed, now_ms, is_ranked)
  local number = next_numbers(keys.delay_queue, keys.counters, #places, now_ms)
  local mark = listed and LISTED or UNLISTED
  local ranks = {}
  local members, frames, located, holders, first, last, score = {}, {}, {}, {}, math.huge, nil, nil
  for n, i in ipairs(places) do
    local token, start, tail, payload = args.new[i].token, starts[n], args.new[i].tail, args.new[i].payload
    if start ~= last then last, score = start, decimal(start) end
    local frame, place
    -- Our own payload: no stranger has written its bytes.
    if payload:sub(1, 11) == '{"delayq":"' then frame, place = pack_new(format, listed, number + n, start, payload) end
    if not frame then
      local _, mac = token_of(payload)
      frame = pack_frame(format, listed, number + n, payload)
      place = write_locator({ start = start, format = tonumber(format), id = struct.pack('>c2I6', mark, number + n),
        mac = mac or NO_MAC, tail = '' })
    end
    members[2 * n - 1], members[2 * n], frames[n] = score, frame, frame
    located[2 * n - 1], located[2 * n] = token, place .. tail
    if tail ~= '' then
      local key = unique_of(tail)
      if key ~= '' then
        holders[#holders + 1] = key:sub(2)
        holders[#holders + 1] = token
      end
    end
    if start < first then first = start end
    if is_ranked or tail ~= '' then ranks[#ranks + 1] = { token = token, tail = tail, start = start } end
  end
  local is_listed, is_located = false, false
  local is_written, refusal = pcall(function()
    redis.call('ZADD', keys.timeout_set, 'NX', unpack(members))
    if listed then redis.call('RPUSH', keys.delay_queue, unpack(frames)) end
    is_listed = listed
    if #ranks > 0 then add_ranks(ranks, is_ranked, function(job) return job.start end) end
    redis.call('HSET', keys.locators, unpack(located))
    is_located = true
    if #holders > 0 then redis.call('HSET', keys.unique, unpack(holders)) end
  end)
  if is_written then return first end
  local tokens = {}
  for n, i in ipairs(places) do tokens[n] = args.new[i].token end
  redis.pcall('ZREM', keys.timeout_set, unpack(frames))
  if is_listed then redis.pcall('LTRIM', keys.delay_queue, 0, -#frames - 1) end
  if #ranks > 0 then redis.pcall('ZREM', keys.ranked, unpack(tokens)) end
  if is_located then redis.pcall('HDEL', keys.locators, unpack(tokens)) end
  raise(refusal)
end
