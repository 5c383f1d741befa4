-- Read one job, wherever it is.
--
-- Prelude  clock, count, window, frame, list, job, unique, find
-- Keys     timeout_set, destination, leases, retries, dead, quarantine, headers, payloads, locators, errors, ended,
--          returned, held
-- Args     token: of the job
-- Reply    state: the state
--          score_ms: start time, end of the lease, until when it is held, or when it was put aside
--          attempts: those that failed
--          kills: leases that expired
--          start_ms: the first start time
--          payload: as it is stored
--          error: as JSON
--          unique: the unique key
--          now_ms: the present time
--          priority: -100 to 100
--          claimed_ms: when it was claimed; 0 if it is not leased or that is not known
--          history: attempts behind it, the last first, one as JSON a line
--          owner: that of the lease, 8 bytes, or empty

local now_ms, token = math.floor(read_clock() / 1000), args.token
return look_at(token, find_job(token, now_ms), now_ms)
