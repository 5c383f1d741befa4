-- Take out frames that the caller has read. Safe to repeat: the frames are taken out once.
--
-- Prelude  clock, count, window, frame, list, job, unique, drop
-- Keys     timeout_set, delay_queue, locators, unique, ended, counters, ranked, target?, target_locators?
-- Where    target, target_locators: the list whose head the payload of the one frame goes to, if any
-- Args     kind: where the frames were read: 'list', the delay queue, or 'zset', the timeout set
--          near: 'head' or 'tail': the end of the delay queue that is nearer
--          depth: how deep the frames lie at most, counted from that end
--          request: some random characters, the same when the call is repeated
--          payload: payload to put into the list, signed for that queue; empty if there is no list
--          frames...: frames, in the order they were read; only one, if there is a list
-- Returns  one character a frame: '1' if it was taken out, '0' if it was no longer there
-- Source   RedissonDelayedQueue.pollAsync and pollLastAndOfferFirstToAsync

local now_ms = math.floor(read_clock() / 1000)
local kind, near, depth, request = args.kind, args.near, tonumber(args.depth), args.request

-- A repeat: the first reply was lost. What that call took out is noted beside the jobs that ended, for as long.
if redis.call('ZSCORE', keys.ended, request) then
  local flags = {}
  for i = args.frames, #ARGV do
    flags[i - args.frames + 1] = redis.call('ZSCORE', keys.ended, request .. '-' .. (i - args.frames + 1)) and '1' or '0'
  end
  return table.concat(flags)
end
redis.call('ZCARD', keys.timeout_set)
if keys.target then
  redis.call('LLEN', keys.target)
  check_hashes(keys.target_locators)
end
sweep_tombstones(keys.delay_queue, keys.counters)

local frames, indexes, flags, notes = {}, {}, {}, { request }
for i = args.frames, #ARGV do
  local frame, at = args.frames[i], nil
  if kind == 'list' then
    at = redis.call('LPOS', keys.delay_queue, frame, 'RANK', near == 'tail' and -1 or 1, 'MAXLEN', depth)
  else
    at = redis.call('ZSCORE', keys.timeout_set, frame)
  end
  flags[#flags + 1] = at and '1' or '0'
  if at then
    frames[#frames + 1] = frame
    indexes[#indexes + 1] = at
    notes[#notes + 1] = request .. '-' .. (i - args.frames + 1)
  end
end
if #frames == 0 then return table.concat(flags) end
local plan
if kind == 'list' then
  table.sort(indexes)
  plan = { indexes = indexes, rest = {} }
else
  plan = locate_listed(keys.delay_queue, frames, keys.counters)
end
local jobs = drop(frames, plan, 'taken', now_ms)
if keys.target then
  local token, mac = token_of(args.payload)
  redis.call('LPUSH', keys.target, args.payload)
  -- In the target it is a job as well, and does not only look like one.
  if token and jobs.tokens[1] == token then
    local tail = ''
    if keys.target_locators == keys.locators then
      -- It has only become due.
      tail = jobs.tails[1]
      redis.call('ZREM', keys.ended, token)
      add_to(keys.counters, 'taken', -1)
      local key = unique_of(tail)
      if key ~= '' then redis.call('HSET', keys.unique, key:sub(2), token) end
    end
    redis.call('HSET', keys.target_locators, token, write_locator({ start = now_ms, format = 0, id = NOBODY, mac = mac, tail = tail }))
  elseif token then
    -- Perhaps a job that was taken out and put in again.
    leave_unsure(keys.target_locators, token, mac, now_ms)
  end
end
remember(keys.ended, now_ms, 'taken', notes)
return table.concat(flags)
