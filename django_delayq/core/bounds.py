"""How much one call takes on, and for how long it may be repeated."""

#: The most jobs of one `claim`, `acknowledge`, `retry` or `renew`: Lua unpacks some 8,000 values at most.
MAX_BATCH = 500
#: Bytes of payload that one claim or transfer takes out, approximately.
BYTE_BUDGET = 1 << 20
#: How long the server remembers that a job ended, so as to notice a repeated schedule of it. Also in `_job.lua`.
ENDED_MS = 30_000
#: How long after its first try a call that relies on `ENDED_MS` may be repeated. The rest of that time, twice the
#: time-out of a socket, is for a repeat that travels slowly.
REPEAT_MS = 20_000
#: A noted time that is further ahead of the server's clock than this counts as now: somebody has set the clock back. The
#: same as SKEW_MS in _job.lua.
SKEW_MS = 60_000
#: Most records that a queue may keep.
MOST_ENDED = 10_000
#: The end of the year 9999, the last that a datetime can have.
LATEST_MS = 253_402_300_799_999
#: The most tasks that a queue may keep figures of by their names.
MOST_TASKS = 5_000
