-- Read how far a job is, as long as it runs.
--
-- Keys     leases, progress
-- Args     token: token of the job
-- Returns  when its worker said so, epoch ms, a space, and what; nil if it does not run or has not said so

if not redis.call('ZSCORE', keys.leases, args.token) then return nil end
return redis.call('HGET', keys.progress, args.token)
