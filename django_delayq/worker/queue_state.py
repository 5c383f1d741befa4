"""The claim loop's state of one queue, its next claim, and what features do for a queue. Owned by the loop's thread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redis.client import Redis

from django_delayq.conf import QueueSettings
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.claim import Claimed, Mode
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.line import UnderWay
from django_delayq.worker.held_jobs import HeldJobs, Released
from django_delayq.worker.leased_job import Gate
from django_delayq.worker.outage import StepPause
from django_delayq.worker.upkeep import Upkeep


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


#: For this part of a lease after a whole claim that leased something, `claim_few` is tried: only a whole claim writes
#: the record of the service, which must not grow old. If `claim_few` did nothing twice in a row, it is skipped for as
#: long.
FEW_A_LEASE = 40
NOT_FEW_MS = 1_000.0
#: Every claim may ask for this many jobs, and transfer this many elements.
LEAST_BATCH = 8
#: A claim reckons with so many ms a job at least. The server takes some 0.01 for one.
LEAST_JOB_MS = 0.016


class FewClaims:
    """Decides when `claim_few` is worth a try. Times are by our monotonic clock."""

    def __init__(self) -> None:
        self._from_ms = self._till_ms = 0.0
        # How many times in a row `claim_few` did nothing.
        self._misses = 0

    def is_worth_it(self, now_ms: float) -> bool:
        return self._from_ms < now_ms < self._till_ms

    def note_miss(self, sent_ms: float) -> None:
        """Note that `claim_few` did nothing, because there is more to do than it can."""
        self._misses += 1
        if self._misses > 1:
            self._from_ms = sent_ms + NOT_FEW_MS

    def note_hit(self) -> None:
        self._misses = 0

    def note_whole(self, sent_ms: float, lease_ms: int) -> None:
        """Note that a whole claim has leased something."""
        self._till_ms = sent_ms + lease_ms / FEW_A_LEASE


class QueuePart:
    """The part of a feature in the service of one queue, in a worker process."""

    #: The messages on the queue's channel after which there is something to do.
    wakes: frozenset[bytes] = frozenset()
    #: Holds jobs that the process could run; None: this part holds none now.
    gate: Gate | None = None

    def __init__(self, client: Redis, queue: "QueueState") -> None:
        self._client, self._queue, self._settings = client, queue, queue.settings
        self._pause = StepPause()
        #: When there is something to do, by our monotonic clock. Other threads set it to 0.
        self.next_ms = math.inf
        #: The same by the server's clock, epoch us.
        self.due_us = math.inf
        #: When jobs may run that the script of a claim takes for held until then, by the server's clock, epoch us.
        self.free_us = math.inf

    @property
    def has_schedules(self) -> bool:
        """Whether the code of this process has schedules of the queue."""
        return False

    def take_in(self, reply: Claimed) -> bool:
        """Take in the reply to a claim; return whether jobs that were held may run now."""
        return False

    def is_due(self, now_ms: float, now_us: int | None) -> bool:
        """Return whether there is something to do. ``now_us`` is the server's time, if a reply has just had it."""
        return now_ms >= self.next_ms

    def turn(self, now_ms: float, now_us: int | None) -> bool:
        """Do what is due, in bounded steps; return whether there may be something to claim now.

        Raises:
            redis.exceptions.RedisError: the server's own error.
        """
        return False

    def rest(self, now_ms: float, error: Exception) -> None:
        """Do nothing for a while: a turn has failed."""
        self.next_ms = now_ms + self._pause.after(error)

    def release(self, limit: int) -> Released:
        """Let go up to ``limit`` jobs that this part has held, and that may run by now."""
        return Released(0, False)

    def forget(self) -> None:
        """Read everything again: another server answers, or one that has forgotten."""

    def warn_of_left(self) -> None:
        """Log what the process leaves undone that ends because nothing else may run."""


class QueueState:
    """One queue: what may be there, what it was asked without an answer, what its calls cost."""

    def __init__(
        self,
        client: Redis,
        settings: QueueSettings,
        weight: float,
        owner: bytes,
        parts: Sequence[type[QueuePart]],
    ) -> None:
        self.settings = settings
        self.weight = weight
        self.mode = Mode.SHARED if settings.is_shared else Mode.DIRECT
        #: There may be something to claim.
        self.is_ready = True
        #: There may be something to transfer; that needs no room.
        self.is_due = True
        #: Set until the claim's reply comes: if it is lost, the next claim repeats this request, for the same leases.
        self.open_request: bytes | None = None
        #: When that request was first sent, by `boottime_ms`.
        self.open_since_ms = 0.0
        #: A claim that was sent ahead: the server works on it while the last one's jobs are handed out.
        self.under_way: Asked | None = None
        self.few = FewClaims()
        #: When to expect the next event, by our monotonic clock.
        self.next_ms = float("inf")
        #: The same by the server's clock, epoch us; infinite: no event is expected.
        self.next_us = float("inf")
        #: The queue's alarm rang early: ask how long is left by the server's clock.
        self.is_asking = False
        #: The watch of the destination queue is set, and will call back.
        self.is_watched = False
        #: The server knows what it has to before the first claim.
        self.has_begun = False
        #: Perhaps it does not any more, as another one answers.
        self.is_outdated = False
        #: Claims have to heed limits: of tasks, or set while we work.
        self.has_slots = False
        #: The limits of the queue hold back what waits there.
        self.is_held_back = False
        #: The queue is paused: nothing of it begins.
        self.is_paused = False
        #: The queue's format, if that is later than we read: then the queue is left alone.
        self.newer_format = 0
        #: The server's last error that concerns this queue alone.
        self.problem = ""
        #: How long the next try waits while the node of the queue is away, ms.
        self.away_ms = 0.0
        #: Whether the last reply had sync jobs, and async jobs; and when it came.
        self.had_sync = self.had_async = False
        self.had_ms = 0.0
        self.sizer = BatchSizer(
            first=64, least=LEAST_BATCH, most=MAX_BATCH, least_ms=LEAST_JOB_MS
        )
        self.transfer_sizer = BatchSizer(first=100, least=LEAST_BATCH, most=MAX_BATCH)
        #: In this order, each has its turn.
        self.parts = [part(client, self) for part in parts]
        self.upkeep = Upkeep(
            client,
            settings,
            owner,
            lambda: any(part.has_schedules for part in self.parts),
        )
        self.held = HeldJobs(client, settings, [part.release for part in self.parts])

    @property
    def gates(self) -> list[Gate]:
        """The gates that may hold jobs now."""
        return [part.gate for part in self.parts if part.gate is not None]

    def wait_us(self, reply: Claimed) -> float:
        """Return the time until the next event after a claim; negative: none is expected."""
        free_us = min([part.free_us for part in self.parts], default=math.inf)
        if free_us == math.inf:
            return reply.wait_us
        left_us = max(0, math.ceil(free_us - reply.now_us))
        return left_us if reply.wait_us < 0 else min(left_us, reply.wait_us)

    def expect_anything(self) -> None:
        """Note that there may be something to claim and to transfer."""
        self.is_ready = self.is_due = True

    def forget(self) -> None:
        """Have everything read from the server again: another one answers, or it has forgotten."""
        self.is_outdated = True
        self.upkeep.forget()
        for part in self.parts:
            part.forget()
        self.expect_anything()

    def expect_nothing(self) -> None:
        """Ask nothing of the queue until its alarm rings."""
        self.is_ready = self.is_due = False
        self.next_ms = self.next_us = float("inf")
