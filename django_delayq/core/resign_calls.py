"""Replace payloads of a queue, errors and results, each in its place."""

from collections.abc import Iterable
from enum import StrEnum

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.transport.call import Call


class Where(StrEnum):
    """Where `resign` finds payloads."""

    FRAMES = "frames"
    DESTINATION = "destination"
    #: Jobs on their way to other queues.
    FORWARDS = "forwards"
    #: The payloads of jobs that were claimed before.
    PAYLOADS = "payloads"
    #: The errors of jobs, by the field of their hash.
    ERRORS = "errors"


def resign(
    keys: DeliveryKeys, where: Where, items: Iterable[tuple[str | int, bytes, bytes]]
) -> Call[int]:
    """Replace payloads that have not changed since they were read; return how many were replaced. Safe to repeat.

    ``items`` are index, token or field, frame, payload or error as read, and the new one. An index may be a
    guess, and for a frame it may be empty. In the destination queue it counts from the tail; the last element is -1.
    """
    return bind("resign", keys)(where=where, items=items)


def resign_result(
    keys: DeliveryKeys, token: str, items: Iterable[tuple[int, bytes, bytes]]
) -> Call[int]:
    """Replace parts of what is kept of a job that has ended, unless they have changed; return how many. Safe to repeat.

    ``items`` are the index in the list, the part as read, and the new one.
    """
    bound = bind("resign_result", keys, result=keys.result(token))
    return bound(items=items)
