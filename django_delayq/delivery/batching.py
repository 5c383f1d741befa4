"""Batches: jobs that belong together, and the callback that starts once all of them have ended."""

from typing import NamedTuple

from django_delayq.calls.call import Call
from django_delayq.calls.command import Command
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.limits import REPEAT_MS
from django_delayq.delivery.storing import NewJob


class Closed(NamedTuple):
    """The reply to a `close` call."""

    #: Whether this call closed the batch: no other one had.
    is_first: bool
    #: Jobs that have not ended.
    left: int
    #: When the callback starts, epoch ms; None: that is open.
    start_time_ms: int | None


def close(
    keys: DeliveryKeys, callback: NewJob, why: str, *, now_us: int | None = None
) -> Call[Closed]:
    """Say that no more jobs come to the batch whose id is the token of its callback. Safe to repeat.

    The callback is held, for the reason ``why``, until all jobs of the batch have ended.
    """
    token, when, tail, payload = callback
    return Call(
        *bind(PACKAGES, "close", keys),
        (now_argument(now_us), token, when, tail, payload, why),
        lambda reply: Closed(
            reply[0] == 1, reply[1], None if reply[2] < 0 else reply[2]
        ),
        window_ms=REPEAT_MS,
    )


def count_left(keys: DeliveryKeys, token: str) -> Command[int]:
    """Count the jobs of a batch that have not ended."""
    return Command(("HGET", keys.batches, token), lambda reply: int(reply or 0))
