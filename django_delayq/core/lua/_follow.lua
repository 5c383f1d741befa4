-- Prelude: jobs that follow others, stored by the script that ends those. docs/internals.md, "What follows a job".
--
-- Needs _clock, _count, _window, _frame, _list, _job, _unique, _new. They are the last list of a script, `followers`, each with the
-- index of the job before it, from 0.

-- Where that list begins.
local function followers_from()
  return #ARGV + 1 - tonumber(args.follower_count) * #args.followers
end

local function is_known(token)
  return redis.call('HEXISTS', keys.headers, token) == 1 or redis.call('HEXISTS', keys.locators, token) == 1
end

-- Reads, and checks types. ends: the jobs that end, by their index. holds: whether a job still holds its unique key; Java takes
-- none of the queues where jobs end. Returns what store_followers() stores, nil if that is nothing: a job that the queue
-- has already is not stored again, nor one whose unique key another job holds.
local function find_followers(ends, now_us, holds)
  holds = holds or is_known
  local found = { places = {}, starts = {}, tokens = {}, head = math.huge }
  local claimed, ending = {}, {}
  for _, job in pairs(ends) do ending[job.token] = true end
  for i = followers_from(), #ARGV, #args.followers do
    local token, name = args.followers[i].token, unique_of(args.followers[i].tail):sub(2)
    local holder = name ~= '' and (claimed[name] or (holder_of(name, math.floor(now_us / 1000))))
    if holder and (ending[holder] or not claimed[name] and not holds(holder)) then holder = nil end
    if ends[tonumber(args.followers[i].index)] and not holder and not claimed[token] and not is_known(token) then
      claimed[token] = token
      if name ~= '' then claimed[name] = token end
      found.places[#found.places + 1] = i
      found.starts[#found.starts + 1] = start_time(args.followers[i].when, now_us)
      found.tokens[#found.tokens + 1] = token
    end
  end
  if #found.places == 0 then return nil end
  local head = redis.call('ZRANGE', keys.timeout_set, 0, 0, 'WITHSCORES')[2]
  found.head = head and tonumber(head) or math.huge
  redis.call('LLEN', keys.delay_queue)
  check_hashes(keys.unique, keys.counters)
  check_sets(keys.ended)
  found.is_ranked = has_ranks()
  return found
end

local function store_followers(found, now_ms)
  if not found then return end
  -- One that has followed before, and has ended since, follows again: the job before it was replayed.
  redis.call('ZREM', keys.ended, unpack(found.tokens))
  local first = store_new(found.places, found.starts, args.follower_format, args.follower_listed == '1', now_ms, found.is_ranked)
  if first < found.head then publish(keys.redisson_channel, first) end
end
