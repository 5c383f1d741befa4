-- Read the figures of all times.
--
-- Keys     totals
-- Returns  field, figures, …: see delivery/statistics.py

return redis.call('HGETALL', keys.totals)
