"""The next claim on a queue, and a claim that was sent."""

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
