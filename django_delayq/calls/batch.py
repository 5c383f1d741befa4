"""How many elements one call takes on, so that no script holds the server for long.

A script cannot see its own clock move, so whoever calls it measures and adapts.
"""

from math import inf

#: What the elements of one call should take of the server's time, ms.
TARGET_MS = 4.0
#: Or this share of what the call takes besides them, where that is more: a scan of a long list. A call that meets more
#: of the list than those before, or is held up, then still takes no longer than two scans.
CALL_SHARE = 0.7
#: What one call says counts so much less with each that follows.
FORGETTING = 0.9
#: Calls whose sizes differ by less than this share of them do not tell what an element costs.
LEAST_SPREAD = 0.12


class BatchSizer:
    """Learns what a call costs for itself, and what each element adds to it.

    Each call's time is taken for a sum of both, ``call_ms + elements * element_ms``: of calls of different sizes the
    line is found that lies nearest to all of them, the older ones counting less. Where all have one size, another is
    tried. So a server that is far away is no reason for small calls.
    """

    def __init__(
        self,
        *,
        first: int,
        least: int,
        most: int,
        target_ms: float = TARGET_MS,
        call_share: float = CALL_SHARE,
        patience: float = inf,
    ) -> None:
        """``first``, ``least`` and ``most`` are numbers of elements; of the least, twice as many are tried at times.

        ``patience``: after so many slow calls in a row, everything learnt before is forgotten. Until then each may be
        somebody else's doing. Whoever calls all the time needs no such haste, and has smaller batches of it on a busy
        machine.
        """
        #: How many elements the next call takes on at most.
        self.size = first
        #: What a call costs besides its elements, and what each of those adds, ms. 0: not known yet.
        self.call_ms = self.element_ms = 0.0
        self._least, self._most = least, most
        self._target_ms, self._call_share = target_ms, call_share
        self._patience = patience
        # How many calls in a row were slow.
        self._slow = 0
        self._forget()

    def _forget(self) -> None:
        # Sums over the calls: their number, their elements, their times, and the products.
        self._calls = self._elements = self._ms = self._squares = self._products = 0.0

    def bound(self, least: int, most: int) -> None:
        """Set both bounds anew, and keep to them from the next call on."""
        self._least, self._most = least, most
        self.size = min(most, max(least, self.size))

    def learn(self, got: int, took_ms: float) -> None:
        """Take in one call: how many elements it took on, and how long the reply took."""
        if got == 0:
            return
        is_told_apart = self._take_in(got, took_ms)
        fitting = self._most
        if self.element_ms > 0:
            wanted_ms = max(self._target_ms, self._call_share * self.call_ms)
            fitting = int(wanted_ms / self.element_ms)
        if got < self.size <= fitting:
            # There were not so many, or no room for them.
            return
        size = min(self.size * 3 // 2 + 1, fitting)
        if not is_told_apart and took_ms > self._target_ms:
            # Fewer are no risk; as few as can be tell nothing.
            size = got // 2 if got >= 2 * self._least else 2 * got
        self.size = min(self._most, max(self._least, size))

    def _take_in(self, got: int, took_ms: float) -> bool:
        """Learn both costs from a call; returns whether the calls tell one from the other."""
        if self._calls:
            expected_ms = self.call_ms + got * self.element_ms
            most_ms = 1.5 * expected_ms + self._target_ms
            is_slow = took_ms > most_ms
            self._slow = self._slow + 1 if is_slow else 0
            if self._slow >= self._patience:
                # What was learnt does not hold any more.
                self._forget()
            elif is_slow:
                # Something else may have held the server up, or us.
                took_ms = most_ms
        self._calls = FORGETTING * self._calls + 1
        self._elements = FORGETTING * self._elements + got
        self._ms = FORGETTING * self._ms + took_ms
        self._squares = FORGETTING * self._squares + got * got
        self._products = FORGETTING * self._products + got * took_ms
        mean, mean_ms = self._elements / self._calls, self._ms / self._calls
        variance = self._squares / self._calls - mean * mean
        is_told_apart = variance > (LEAST_SPREAD * mean) ** 2
        if is_told_apart:
            covariance = self._products / self._calls - mean * mean_ms
            self.element_ms = covariance / variance
        self.element_ms = min(max(self.element_ms, 0.0), mean_ms / mean)
        self.call_ms = mean_ms - mean * self.element_ms
        return is_told_apart
