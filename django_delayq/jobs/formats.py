"""Knows in which format this process writes to a queue: never a later one than the server names for the queue.

A version that writes only one format does not ask the server. A version that also writes a later one asks before it
sends, and keeps the answer for a while. Without an answer it writes the oldest format, which every version reads.
docs/wire-format.md, "Formats".
"""

from typing import Any

from django.core.signals import setting_changed
from redis.exceptions import RedisError

from django_delayq.calls.errors import mark_unsent
from django_delayq.calls.steps import Steps
from django_delayq.clock import monotonic_ms
from django_delayq.delivery import upgrading
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.wire import signing

#: How long an answer counts, ms. `Resigning` waits this long after it lowers a format.
KEPT_MS = 5_000.0
#: The first format in which a job has a priority.
PRIORITIES = 2
#: The first format in which a job carries those that follow it. It is written in that format wherever it goes: workers that
#: read only the one before it hold the job for others, and would otherwise drop what follows.
FOLLOWERS = 2

# By queue: the format that the server named, whether the queue has priorities, and until when that answer counts, by
# `monotonic_ms`.
_known: dict[str, tuple[int, bool, float]] = {}
#: What counts while nothing is known: the format that every version reads.
_NOTHING = signing.OLDEST, False, 0.0


def known(queue: str) -> int:
    """Return the format to write, without asking the server."""
    if not _known:
        return signing.OLDEST
    format, _, until_ms = _known.get(queue, _NOTHING)
    return format if monotonic_ms() < until_ms else signing.OLDEST


def is_ranked(queue: str) -> bool:
    """Return whether the queue had priorities when the server was last asked for its format."""
    format, is_ranked, _ = _known.get(queue, _NOTHING)
    return is_ranked and format >= PRIORITIES


def is_known(queue: str) -> bool:
    """Return whether a job can be sent without asking for the format."""
    if signing.FORMAT == signing.OLDEST:
        return True
    return monotonic_ms() < _known.get(queue, _NOTHING)[2]


def asking(queue: str) -> Steps[int]:
    """Ask the server which format to write.

    Raises:
        redis.exceptions.RedisError: the server did not answer; nothing was sent.
    """
    asked_ms = monotonic_ms()
    try:
        found = yield upgrading.read_format(DeliveryKeys.of(queue))
    except RedisError as error:
        mark_unsent(error)
        raise
    # This version cannot write below its oldest format; jobs in that format then wait for workers that read it.
    format = max(signing.OLDEST, min(int(found.written), signing.FORMAT))
    _known[queue] = format, found.is_ranked, asked_ms + KEPT_MS
    return format


def forget(**kwargs: Any) -> None:
    """Forget the servers' answers; connected to ``setting_changed``."""
    _known.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.formats")
