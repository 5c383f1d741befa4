"""The claim loop's state of one queue. Owned by the loop's thread."""

from redis.client import Redis

from django_delayq.calls.batch import BatchSizer
from django_delayq.conf import QueueSettings
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.limits import MAX_BATCH
from django_delayq.worker.gates import Gates
from django_delayq.worker.held import HeldJobs
from django_delayq.worker.pausing import Pauses
from django_delayq.worker.periodic import Periods
from django_delayq.worker.plan import Asked
from django_delayq.worker.upkeep import Upkeep

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


class QueueState:
    """One queue: what may be there, what it was asked without an answer, what its calls cost."""

    def __init__(
        self, client: Redis, settings: QueueSettings, weight: float, owner: bytes
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
        self.upkeep = Upkeep(client, settings, owner)
        self.pauses = Pauses(settings.name)
        self.held = HeldJobs(client, settings, self.pauses)
        self.periods = Periods(
            client, settings, self.upkeep.load_time, self.upkeep.ask_whether_latest
        )

    @property
    def gates(self) -> Gates | None:
        """What may hold the jobs of a claim; None: nothing."""
        paused, gives_limits = self.pauses.of_tasks, self.upkeep.gives_limits
        return Gates(paused, gives_limits) if paused or gives_limits else None

    def expect_anything(self) -> None:
        """Note that there may be something to claim and to transfer."""
        self.is_ready = self.is_due = True

    def forget(self) -> None:
        """Have everything read from the server again: another one answers, or it has forgotten."""
        self.is_outdated = True
        self.upkeep.forget()
        self.periods.forget()
        self.expect_anything()

    def expect_nothing(self) -> None:
        """Ask nothing of the queue until its alarm rings."""
        self.is_ready = self.is_due = False
        self.next_ms = self.next_us = float("inf")
