"""The alarm of a transfer or claim loop: one deadline a queue, waited for by one thread.

It decides when to look, not what to do. The thread that waits makes a push or a claim for each key that rang, and sets
the alarm, with `Alarm.ring_in`, to the next event in the reply.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from django_delayq.clock import monotonic_ms

K = TypeVar("K", bound=Hashable)

#: The safety wake-up: no lost message and no dropped subscription delays an element by more than this.
CAP_MS = 2_000
#: The longest lead, the time before a deadline to ring. A server that has idled answers after 1.7 ms instead of 0.15.
MAX_LEAD_MS = 2.5
#: The shortest lead: even on an idle machine a timed wait ends this late.
MIN_LEAD_MS = 0.3
#: Within this time of a call the server has not dozed off, and its clock and ours have not drifted apart.
AWAKE_MS = 5.0
#: The end of a short wait, spent awake: a sleep ends 0.2 ms late, or 0.5 ms where the processor dozes.
SPIN_MS = 0.3


class Lead:
    """How long before a deadline to ring, in ms, so that the answer to a first push is there in time."""

    def __init__(self) -> None:
        self.ms = 1.5

    def learn(self, needed_ms: float) -> None:
        """Take in the time from the moment to ring to the answer. The lead grows at once and shrinks slowly."""
        aim_ms = needed_ms + 0.2
        rate = 0.5 if aim_ms > self.ms else 0.05
        self.ms += rate * (min(aim_ms, 2 * MAX_LEAD_MS) - self.ms)
        self.ms = min(max(self.ms, MIN_LEAD_MS), MAX_LEAD_MS)


@dataclass(slots=True)
class _Entry:
    #: When to ring; infinite once it has rung early and the answer is not there yet.
    ring_ms: float = math.inf
    #: It rings before the deadline, to ask a server that may have dozed off for the rest of the time.
    is_early: bool = False
    #: The last moments are spent awake.
    is_precise: bool = False
    #: When it rang early, the moment it should have, until the answer comes.
    asked_ms: float | None = None


class Alarm(Generic[K]):
    """Rings for a key when its deadline comes, when it is woken, and at the latest after the cap.

    On an idle machine it rings twice for each deadline. The first ring comes some ms early: the caller then wakes the
    server, which returns the time left to the microsecond. The second comes at the deadline. Under load, where the next
    deadline is nearer than `AWAKE_MS`, it rings once.

    `wake` may be called from any thread; everything else belongs to the thread that waits.
    """

    def __init__(
        self, *, cap_ms: float = CAP_MS, clock: Callable[[], float] = monotonic_ms
    ) -> None:
        self.cap_ms = cap_ms
        self.lead = Lead()
        self._clock = clock
        self._entries: dict[K, _Entry] = {}
        #: Of the keys that rang last, those that did so before their deadline.
        self.early: set[K] = set()
        # Any thread appends, the one that waits pops: a deque needs no lock for that.
        self._woken: deque[K] = deque()
        # Released to end the wait: a condition would cost several times as much.
        self._bell = Lock()
        self._bell.acquire()

    def ring_in(self, key: K, wait_us: float, told_ms: float | None = None) -> None:
        """Set the deadline of a key, from the reply to a push: us until the next event, -1 when none waits.

        ``told_ms`` is when the server said so, by the clock of the alarm; by default it is now. The ring at the
        deadline counts from it. The early ring counts from now: the lead has room for the way of a reply and of a call.
        """
        now_ms = self._clock()
        before = self._entries.get(key)
        entry = self._entries[key] = _Entry()
        if before is not None and before.asked_ms is not None:
            self.lead.learn(now_ms - before.asked_ms)
        wait_ms = wait_us / 1000
        if wait_us < 0 or wait_ms > self.cap_ms:
            entry.ring_ms = now_ms + self.cap_ms
            return
        if wait_ms > AWAKE_MS:
            entry.ring_ms = now_ms + wait_ms - self.lead.ms
            entry.is_early = True
            return
        entry.ring_ms = (now_ms if told_ms is None else told_ms) + wait_ms
        if before is not None:
            # This is the second ring of a deadline, or the third if the second came a moment early.
            entry.is_precise = before.asked_ms is not None or (
                before.is_precise and wait_ms <= SPIN_MS
            )

    def forget(self, key: K) -> None:
        """Ring for a key no more."""
        self._entries.pop(key, None)
        while key in self._woken:
            self._woken.remove(key)

    def wake(self, key: K) -> None:
        """Ring for a key now, or at the next `wait` if nobody waits. Any thread may call this."""
        self._woken.append(key)
        # Another thread may have been quicker.
        with suppress(RuntimeError):
            if self._bell.locked():
                self._bell.release()

    def next_ms(self) -> float:
        """Return when it will ring by itself, by its clock."""
        return min(
            (entry.ring_ms for entry in self._entries.values()), default=math.inf
        )

    def wait(self, timeout_ms: float = math.inf) -> set[K]:
        """Wait until something rings, and return the keys that do; none after ``timeout_ms``.

        A key that rang is silent until the next `ring_in`, or for the time of the cap.
        """
        give_up_ms = self._clock() + timeout_ms
        while True:
            now_ms = self._clock()
            rung = self._ring(now_ms)
            if rung or now_ms >= give_up_ms:
                return rung
            self._wait_for(self._next(give_up_ms), now_ms)

    def _ring(self, now_ms: float) -> set[K]:
        woken: set[K] = set()
        self.early = set()
        while self._woken:
            woken.add(self._woken.popleft())
        for key, entry in self._entries.items():
            if entry.ring_ms <= now_ms:
                entry.asked_ms = None
                if entry.is_early:
                    entry.asked_ms = entry.ring_ms
                    if key not in woken:
                        self.early.add(key)
                entry.ring_ms = now_ms + self.cap_ms
                entry.is_early = False
                woken.add(key)
        return woken

    def _next(self, give_up_ms: float) -> _Entry:
        # A few queues at most: no heap.
        first = min(
            self._entries.values(), key=lambda entry: entry.ring_ms, default=None
        )
        if first is not None and first.ring_ms <= give_up_ms:
            return first
        return _Entry(give_up_ms)

    def _wait_for(self, entry: _Entry, now_ms: float) -> None:
        wait_ms = entry.ring_ms - now_ms
        if not entry.is_precise:
            self._bell.acquire(timeout=-1 if wait_ms == math.inf else wait_ms / 1000)
        elif wait_ms > SPIN_MS:
            self._bell.acquire(timeout=(wait_ms - SPIN_MS) / 1000)
        else:
            # Lets other threads of this process run, and `wake` waits no longer than this.
            while self._clock() < entry.ring_ms:
                time.sleep(0)
