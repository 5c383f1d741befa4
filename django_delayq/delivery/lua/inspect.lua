-- Read one job, wherever it is.
--
-- Prelude  clock, count, window, frame, list, job, find
-- Keys     timeout_set, destination, leases, retries, dead, quarantine, headers, payloads, locators, errors, ended,
--          returned, held
-- Args     now_us: epoch us; empty: the server's TIME (tests pass their own)
--          token: of the job
-- Returns  state; score (start time, end of the lease, until when it is held, or when it was put aside; epoch ms);
--          attempts that failed; leases that expired; first start time (epoch ms); payload; error as JSON; unique key;
--          now (epoch ms); priority; when it was claimed (epoch ms), 0 if it is not leased or that is not known; attempts
--          behind it, the last first, one as JSON a line; owner of the lease, 8 bytes, or empty

local now_ms, token = math.floor(read_clock(args.now_us) / 1000), args.token
return look_at(token, find_job(token, now_ms), now_ms)
