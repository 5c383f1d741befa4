"""A claim that was sent."""

from dataclasses import dataclass

from django_delayq.calls.line import UnderWay
from django_delayq.delivery.claiming import Claimed
from django_delayq.worker.planning import Plan


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim that was sent."""

    call: UnderWay[Claimed] | UnderWay[Claimed | None]
    plan: Plan
    sent_ms: float
    #: For how long it puts suspects off.
    put_off_ms: float
    #: Not only for the few frames of a simple case.
    is_whole: bool
