-- Cancel jobs that are not running. Those in the delay queue share a scan of it.
--
-- Prelude  clock, count, window, frame, list, job, find, held, pause, limit, batch, cancel, ended
-- Keys     timeout_set, delay_queue, destination, leases, retries, dead, quarantine, headers, payloads, locators,
--          errors, notes, unique, ended, counters, returned, held, held_tasks, ranked, control, channel, slots,
--          paces, batches, last_ended?
-- Where    last_ended: only if the queue remembers the jobs that ended last
-- ARGV[1]  now, epoch us; empty: the server's TIME (tests pass their own)
-- ARGV[2]  how many jobs that ended the queue remembers
-- ARGV[3]  and on: tokens, all different
-- Returns  for each 'cancelled'; 'noted' if it lies in a long destination queue, and will not run unless Java takes it;
--          or the state in which it was left

local now_ms = math.floor(read_clock(ARGV[1]) / 1000)

-- Reads. One look through the destination queue serves all jobs of a call.
local lying, is_all
local function find_lying(destination, token, locator)
  if not lying then
    lying = {}
    is_all = look_through(destination, function(payload)
      local found, mac = token_of(payload)
      if found and not lying[found .. mac] then lying[found .. mac] = payload end
    end)
  end
  local _, _, _, _, mac = read_locator(locator)
  return lying[token .. mac], is_all
end

local jobs, tokens = {}, {}
for i = 3, #ARGV do
  tokens[i - 2], jobs[i - 2] = ARGV[i], find_job(ARGV[i], now_ms, #ARGV > 3 and find_lying)
end
if not keys.last_ended then return cancel_found(jobs, tokens, now_ms) end
local records = {}
local replies = cancel_found(jobs, tokens, now_ms, function(token, payload)
  records[#records + 1] = end_record(token, payload, 'cancelled', now_ms)
end)
if #records > 0 then add_records(keys.last_ended, records, tonumber(ARGV[2])) end
return replies
