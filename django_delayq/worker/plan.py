"""The next claim on a queue, a claim that was sent, and the pace at which jobs run."""

from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.core.claim import Claimed
from django_delayq.transport.line import UnderWay

#: How long there must have been jobs to run before their number shows how fast they are.
MEASURED_MS = 1.0


class Pace:
    """Learns how many jobs per ms the threads of a process finish while they have jobs.

    Time spent waiting for more does not count: it only shows how long a call takes.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again: what was learnt turned out to be wrong."""
        #: Jobs per ms; 0: not known yet.
        self.rate = 0.0
        # Since the last measurement: how long there were jobs, until when that is known, and how many have ended.
        self._busy_ms, self._noted_ms = 0.0, float("inf")
        self._ended = 0
        self._is_busy = False

    def note(self, now_ms: float, until_ms: float) -> None:
        """Note until when there were jobs. Call this before jobs are handed out, and when some are settled."""
        self._busy_ms += max(0.0, until_ms - self._noted_ms)
        self._noted_ms = now_ms

    def measure(self, count: int, *, is_busy: bool) -> None:
        """Count settled jobs. If they ended before all threads had a job (not ``is_busy``), leave them out."""
        self._ended += count
        is_measured = self._is_busy and self._busy_ms >= MEASURED_MS
        if is_measured:
            rate = self._ended / self._busy_ms
            self.rate += 0.3 * (rate - self.rate) if self.rate else rate
        if is_measured or not self._is_busy:
            self._busy_ms, self._ended = 0.0, 0
        self._is_busy = is_busy


class Room(NamedTuple):
    """How many jobs of each kind this process can take on."""

    sync: int
    coroutines: int


NO_ROOM = Room(0, 0)


class Plan(NamedTuple):
    """The next claim on a queue."""

    limit: int
    #: If set, there is room for one kind only: jobs of the other kind, and excess ones, are given back.
    only: Room | None = None


NOTHING = Plan(0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim that was sent."""

    call: UnderWay[Claimed] | UnderWay[Claimed | None]
    plan: Plan
    sent_ms: float
    #: For how long the claim puts suspects off.
    put_off_ms: float
    #: Whether this is a whole claim, not a `claim_few` for the simple case.
    is_whole: bool
