-- Part of schedule: refuse all new jobs of a call together if the queue would hold more than it may.
--
-- Uses     fresh
-- Fills    reply

local most, held = tonumber(ARGV[#ARGV]), redis.call('LLEN', keys.destination)
for _, set in ipairs({ keys.timeout_set, keys.returned, keys.retries, keys.held, keys.leases }) do
  held = held + redis.call('ZCARD', set)
end
if held + #fresh > most then
  local refused = {}
  for _, i in ipairs(fresh) do refused[ARGV[i]] = true end
  for n = 1, #reply, 2 do
    -- A job that gave way to a refused one of its unique key has nobody to wait for.
    if refused[ARGV[2 * n + 3]] or refused[reply[n + 1]] then reply[n], reply[n + 1] = held, '=uncommitted' end
  end
  return reply
end
