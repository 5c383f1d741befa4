"""What the claim loop knows of one queue. Owned by its thread."""

from redis.client import Redis

from django_delayq.calls.batch import BatchSizer
from django_delayq.conf import QueueSettings
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.limits import MAX_BATCH
from django_delayq.worker.held import HeldJobs
from django_delayq.worker.plan import Asked
from django_delayq.worker.upkeep import Upkeep

#: `claim_few` is tried for this part of a lease after a whole claim that leased something: only a whole claim writes
#: the record of the service, which must not be old. If `claim_few` did nothing twice in a row, it is left out for so
#: long.
FEW_A_LEASE = 40
NOT_FEW_MS = 1_000.0
#: Jobs that a claim may always ask for, and elements that it may transfer.
LEAST_BATCH = 8


class FewClaims:
    """Decides when `claim_few` is worth a try. Times are those of our monotonic clock."""

    def __init__(self) -> None:
        self._from_ms = self._till_ms = 0.0
        # How often in a row it did nothing.
        self._misses = 0

    def is_worth_it(self, now_ms: float) -> bool:
        return self._from_ms < now_ms < self._till_ms

    def note_miss(self, sent_ms: float) -> None:
        """Take note that it did nothing, because more is to be done than it can."""
        self._misses += 1
        if self._misses > 1:
            self._from_ms = sent_ms + NOT_FEW_MS

    def note_hit(self) -> None:
        self._misses = 0

    def note_whole(self, sent_ms: float, lease_ms: int) -> None:
        """Take note that a whole claim has leased something."""
        self._till_ms = sent_ms + lease_ms / FEW_A_LEASE


class QueueState:
    """One queue: what may be there, what was asked of it and not answered, what its calls cost."""

    def __init__(
        self, client: Redis, settings: QueueSettings, weight: float, owner: bytes
    ) -> None:
        self.settings = settings
        self.weight = weight
        self.mode = Mode.SHARED if settings.is_shared else Mode.DIRECT
        #: There may be something to claim.
        self.is_ready = True
        #: There may be something to transfer, for which no room is needed.
        self.is_due = True
        #: The reply to the last claim was lost: ask with the same request, for the same leases.
        self.open_request: bytes | None = None
        #: When it was first sent, by `boottime_ms`.
        self.open_since_ms = 0.0
        #: A claim that was sent ahead: while the server works on it the last one's jobs are handed out.
        self.under_way: Asked | None = None
        self.few = FewClaims()
        #: When the next event is to be expected, by our monotonic clock.
        self.next_ms = float("inf")
        #: The same by the server's clock, epoch us; infinite: nothing is to be expected.
        self.next_us = float("inf")
        #: Its alarm rang early: how long is left, by the server's clock?
        self.is_asking = False
        #: The watch of its destination queue will call back.
        self.is_watched = False
        #: Its format where that is later than we read: it is left alone then.
        self.newer_format = 0
        #: The last error that the server had for this queue alone.
        self.problem = ""
        #: The last reply had sync jobs, async jobs; and when it came.
        self.had_sync = self.had_async = False
        self.had_ms = 0.0
        self.sizer = BatchSizer(first=64, least=LEAST_BATCH, most=MAX_BATCH)
        self.transfer_sizer = BatchSizer(first=100, least=LEAST_BATCH, most=MAX_BATCH)
        self.upkeep = Upkeep(client, settings, owner)
        self.held = HeldJobs(client, settings)

    def expect_anything(self) -> None:
        """Take note that there may be something to claim and to transfer."""
        self.is_ready = self.is_due = True

    def expect_nothing(self) -> None:
        """Ask nothing of the queue until its alarm rings."""
        self.is_ready = self.is_due = False
        self.next_ms = self.next_us = float("inf")
