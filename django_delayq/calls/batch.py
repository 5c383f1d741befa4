"""How many jobs a call may ask for, so that no script holds the server for long.

A script cannot see its own clock move, so whoever calls it measures and adapts.
"""

#: What the jobs of one call should take of the server's time, ms; or this share of what the call takes besides them,
#: where that is more: a scan of a long list. A claim that meets more of the list than those before, or is held up, then
#: still takes no longer than two scans.
TARGET_MS = 4.0
CALL_SHARE = 0.7
#: What one call says counts so much less with each that follows.
FORGETTING = 0.9


#: Calls whose sizes differ by less than this share of them do not tell what a job costs.
LEAST_SPREAD = 0.12
#: Jobs that a call may always ask for.
LEAST = 8


class BatchSizer:
    """Learns what a call costs for itself, and what each job adds to it.

    Each call's time is taken for a sum of both, ``call_ms + jobs * job_ms``: of calls of different sizes the line is
    found that lies nearest to all of them, the older ones counting less. Where all have one size, another is tried.
    """

    def __init__(self, *, first: int = 64, most: int = 500) -> None:
        #: How many jobs to ask for at most.
        self.size = first
        #: What a call costs besides its jobs, and what each of those adds, ms. 0: not known yet.
        self.call_ms = self.job_ms = 0.0
        self._most = most
        # Sums over the calls: their number, their jobs, their times, and the products.
        self._calls = self._jobs = self._ms = self._squares = self._products = 0.0

    def learn(self, got: int, took_ms: float) -> None:
        """Take in one call: how many jobs came, and how long the reply took."""
        if got == 0:
            return
        is_told_apart = self._take_in(got, took_ms)
        fitting = self._most
        if self.job_ms > 0:
            fitting = int(max(TARGET_MS, CALL_SHARE * self.call_ms) / self.job_ms)
        if got < self.size <= fitting:
            # There were not so many, or no room for them.
            return
        size = min(self.size * 3 // 2 + 1, fitting)
        if not is_told_apart and took_ms > TARGET_MS:
            # Fewer are no risk; as few as can be tell nothing.
            size = got // 2 if got >= 2 * LEAST else 2 * got
        self.size = min(self._most, max(LEAST, size))

    def _take_in(self, jobs: int, took_ms: float) -> bool:
        """Learn both costs from a call; returns whether the calls tell one from the other."""
        if self._calls:
            # Something else may have held the server up, or us.
            expected_ms = self.call_ms + jobs * self.job_ms
            took_ms = min(took_ms, 1.5 * expected_ms + TARGET_MS)
        self._calls = FORGETTING * self._calls + 1
        self._jobs = FORGETTING * self._jobs + jobs
        self._ms = FORGETTING * self._ms + took_ms
        self._squares = FORGETTING * self._squares + jobs * jobs
        self._products = FORGETTING * self._products + jobs * took_ms
        mean, mean_ms = self._jobs / self._calls, self._ms / self._calls
        variance = self._squares / self._calls - mean * mean
        is_told_apart = variance > (LEAST_SPREAD * mean) ** 2
        if is_told_apart:
            self.job_ms = (self._products / self._calls - mean * mean_ms) / variance
        self.job_ms = min(max(self.job_ms, 0.0), mean_ms / mean)
        self.call_ms = mean_ms - mean * self.job_ms
        return is_told_apart
