"""How many elements one call takes on, so that no script holds the server for long.

A script cannot see its own clock move, so the caller measures and adapts.
"""

from math import inf

#: The server's time that the elements of one call should take, ms.
TARGET_MS = 4.0
#: Where a call itself is costly, as with the scan of a long list, its elements may take this share of that cost. Even
#: if a call meets more of the list than the calls before it, or is held up, it takes no longer than two scans.
CALL_SHARE = 0.7
#: With each later call, the weight of an earlier one shrinks by this factor.
FORGETTING = 0.9
#: Calls whose sizes differ by less than this share do not show what an element costs.
LEAST_SPREAD = 0.12


class BatchSizer:
    """Learns what a call itself costs, and what each element adds to it.

    It models the time of a call as ``call_ms + elements * element_ms``, and fits this line to calls of different sizes;
    older calls count less. While all calls have one size, it tries another. Because it knows the two costs apart, it
    makes no small calls just because the server is far away.
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
        least_ms: float = 0.0,
    ) -> None:
        """``first``, ``least`` and ``most`` are numbers of elements. At times a call takes on twice the least.

        An element counts as ``least_ms`` at least. On a busy machine, where the times of calls vary more than their
        sizes, elements may seem to cost nothing.

        After ``patience`` slow calls in a row, the sizer forgets everything it has learnt; until then, something else
        may have made each of them slow. A caller that calls all the time needs no such haste: on a busy machine it
        would only get smaller batches.
        """
        #: How many elements the next call takes on at most.
        self.size = first
        #: What a call costs besides its elements, and what each element adds, ms. 0: not known yet.
        self.call_ms = self.element_ms = 0.0
        self._least, self._most = least, most
        self._target_ms, self._call_share = target_ms, call_share
        self._patience = patience
        self._least_ms = least_ms
        # How many calls in a row were slow.
        self._slow = 0
        self._forget()

    def _forget(self) -> None:
        # Sums over the calls: their number, their elements, their times, and the products.
        self._calls = self._elements = self._ms = self._squares = self._products = 0.0

    def bound(self, least: int, most: int) -> None:
        """Change both bounds, from the next call on."""
        self._least, self._most = least, most
        self.size = min(most, max(least, self.size))

    def learn(self, got: int, took_ms: float) -> None:
        """Take in one call: how many elements it took on, and how long the reply took."""
        if got == 0:
            return
        is_told_apart = self._take_in(got, took_ms)
        fitting = self._most
        if (element_ms := max(self.element_ms, self._least_ms)) > 0:
            wanted_ms = max(self._target_ms, self._call_share * self.call_ms)
            fitting = int(wanted_ms / element_ms)
        if got < self.size <= fitting:
            # So many were not there, or had no room.
            return
        size = min(self.size * 3 // 2 + 1, fitting)
        if not is_told_apart and took_ms > self._target_ms:
            # A smaller call is no risk. At the least size it would show nothing, so then a larger one is tried.
            size = got // 2 if got >= 2 * self._least else 2 * got
        self.size = min(self._most, max(self._least, size))

    def _take_in(self, got: int, took_ms: float) -> bool:
        """Learn both costs from a call; returns whether the calls so far show each of them."""
        if self._calls:
            expected_ms = self.call_ms + got * self.element_ms
            most_ms = 1.5 * expected_ms + self._target_ms
            is_slow = took_ms > most_ms
            self._slow = self._slow + 1 if is_slow else 0
            if self._slow >= self._patience:
                # What was learnt no longer holds.
                self._forget()
            elif is_slow:
                # Something else may have held up the server, or this process.
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
