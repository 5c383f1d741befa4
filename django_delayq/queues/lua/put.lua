-- Put an element that says that it is a job at the tail of the destination queue, and note that it may be one. So a job
-- that our own API took out and puts in again runs, once its signature is checked. Not safe to repeat.
--
-- Prelude  clock, window, frame, job
-- Keys     destination, locators
-- Args     payload: as it is stored
-- Returns  how many elements the destination queue has

local payload = args.payload
local now_ms = math.floor(read_clock() / 1000)

redis.call('LLEN', keys.destination)
check_hashes(keys.locators)
local token, mac = token_of(payload)
if token then leave_unsure(keys.locators, token, mac, now_ms) end
return redis.call('RPUSH', keys.destination, payload)
