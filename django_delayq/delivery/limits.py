"""How much one call takes on, and for how long one may be repeated."""

#: Most jobs of one `claim`, `acknowledge`, `retry`, `renew`: Lua unpacks some 8,000 values at most.
MAX_BATCH = 500
#: Bytes of payload that one claim or transfer takes out, about.
BYTE_BUDGET = 1 << 20
#: How long an ended job is remembered, so that a repeated schedule of it is noticed. `_job.lua` has it too.
ENDED_MS = 30_000
#: How long after its first try a call may be repeated that relies on this. The rest is for a repeat that is long on its
#: way: twice the time-out of a socket.
REPEAT_MS = 20_000
