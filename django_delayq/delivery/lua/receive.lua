-- Store jobs that follow ones of another queue. However often each is sent, it is stored once.
--
-- Prelude  clock, count, window, frame, list, job, new, sent, follow
-- Keys     timeout_set, delay_queue, redisson_channel, locators, headers, unique, ended, counters, ranked, control, retries,
--          returned, leases, destination, sent
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  until when the call is good, epoch ms: what somebody sends who was cut off may have been forgotten here since
-- ARGV[3]  number of jobs
-- ARGV[4]  and on, by what `sent` knows each; then what _follow.lua says, with the jobs' own indexes
-- Returns  now, epoch ms; then the tokens of those that were stored; or '' if the call came too late, and stored nothing

local now_us, count = read_clock(ARGV[1]), tonumber(ARGV[3])
local now_ms = math.floor(now_us / 1000)
if now_ms > tonumber(ARGV[2]) then return { now_ms, '' } end

local fresh, unnoted, former = {}, {}, {}
local first = followers_from()
for n = 0, count - 1 do
  local token = ARGV[first + 5 * n + 1]
  if not was_sent(ARGV[4 + n]) then
    unnoted[#unnoted + 1] = 4 + n
    -- A worker of an earlier version has sent it, and died before the job before it had ended.
    if was_sent(token) then
      former[#former + 1] = token
    else
      fresh[n] = { token = '' }
    end
  end
end
if #unnoted == 0 then return { now_ms } end
local found = find_followers(fresh, now_us, is_alive)
note_sent(unnoted, now_ms)
if #former > 0 then redis.call('ZREM', keys.sent, unpack(former)) end
local is_stored, refusal = pcall(store_followers, found, now_ms)
if not is_stored then
  forget_sent(unnoted)
  raise(refusal)
end
return { now_ms, unpack(found and found.tokens or {}) }
