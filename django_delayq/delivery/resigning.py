"""Replace payloads of a queue, each in its place."""

from collections.abc import Iterable
from enum import StrEnum

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES
from django_delayq.delivery.keys import DeliveryKeys


class Where(StrEnum):
    """Where `resign` finds payloads."""

    FRAMES = "frames"
    DESTINATION = "destination"
    #: The payloads of jobs that were claimed before.
    PAYLOADS = "payloads"


def resign(
    keys: DeliveryKeys, where: Where, items: Iterable[tuple[str | int, bytes, bytes]]
) -> Call[int]:
    """Replace payloads that have not changed since they were read; return how many were replaced. Safe to repeat.

    ``items`` are index or token, frame or payload as read, and the new payload. An index may be a
    guess, and for a frame it may be empty. In the destination queue it counts from the tail; the last element is -1.
    """
    args: list[Argument] = [where]
    for item in items:
        args += item
    return Call(
        *bind(PACKAGES, "resign", keys),
        args,
    )
