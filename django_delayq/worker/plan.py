"""What a queue is to be asked for, and that it was asked."""

from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.calls.line import UnderWay
from django_delayq.delivery.claiming import Claimed


class Room(NamedTuple):
    """How many jobs of each kind this process can take on."""

    sync: int
    coroutines: int


NO_ROOM = Room(0, 0)


class Plan(NamedTuple):
    """What to ask a queue for."""

    limit: int
    #: There is room for one kind only: what comes of the other, and what is too much, is given back.
    only: Room | None = None


NOTHING = Plan(0)


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
