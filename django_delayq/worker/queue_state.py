"""What the claim loop knows of one queue."""

from typing import TYPE_CHECKING

from django_delayq.conf import QueueSettings
from django_delayq.delivery.claiming import Mode
from django_delayq.worker.batch import BatchSizer
from django_delayq.worker.upkeep import Upkeep

if TYPE_CHECKING:
    from django_delayq.worker.claiming import Asked


class QueueState:
    """What the loop knows of one queue."""

    def __init__(self, settings: QueueSettings, weight: float, upkeep: Upkeep) -> None:
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
        #: From when until when `claim_few` may do, by our monotonic clock.
        self.few_from_ms = self.few_till_ms = 0.0
        #: How often in a row it did nothing.
        self.few_misses = 0
        #: A claim that was sent ahead: while the server works on it the last one's jobs are handed out.
        self.under_way: Asked | None = None
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
        self.sizer = BatchSizer()
        self.transfer_sizer = BatchSizer(first=100)
        self.upkeep = upkeep
        #: When to look for held jobs next; at the start, at once.
        self.look_at_held_ms = 0.0
        self.held_cursor = b""
