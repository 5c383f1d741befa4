"""Knows in which format this process writes to a queue: never a later one than the server names for the queue.

A version that writes only one format does not ask the server. A version that also writes a later one asks before it
sends, and keeps the answer for a while. Without an answer it writes the oldest format, which every version reads.
docs/wire-format.md, "Formats".
"""

import math
from typing import Any, NamedTuple

from django.core.signals import setting_changed
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.errors import mark_unsent
from django_delayq.calls.steps import Steps
from django_delayq.clock import monotonic_ms
from django_delayq.delivery import upgrading
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.jobs import sharding
from django_delayq.wire import signing

#: How long an answer counts, ms. `Resigning` waits this long after it lowers a format.
KEPT_MS = 5_000.0
#: The first format in which a job has a priority.
PRIORITIES = 2
#: The first format in which a job carries those that follow it, or is in a batch. It is written in that format wherever it
#: goes: workers that read only the one before it hold the job for others, and would otherwise drop what follows.
FOLLOWERS = 2


class Known(NamedTuple):
    """What the server says of a queue's format."""

    #: The one to write.
    format: int
    #: Whether a job of the queue has a priority.
    is_ranked: bool
    #: Until when the answer counts, by `monotonic_ms`.
    until_ms: float

    @property
    def has_priorities(self) -> bool:
        return self.format >= PRIORITIES


_known: dict[str, Known] = {}
#: What counts while nothing is known: the format that every version reads.
_OLDEST = Known(signing.OLDEST, False, math.inf)


def answer(queue: str) -> Known | None:
    """Return what the server said of a queue; None if it has to be asked before a job is sent."""
    found = _known.get(queue)
    if found is not None and monotonic_ms() < found.until_ms:
        return found
    return _OLDEST if signing.FORMAT == signing.OLDEST else None


def known(queue: str) -> Known:
    """Return what counts for a queue now, without asking the server."""
    return answer(queue) or _OLDEST


def last_known(queue: str) -> int:
    """Return the format that the server named last, however long ago: a guess, which sending puts right."""
    return _known.get(queue, _OLDEST).format


def finding(queue: str) -> Steps[Known]:
    """Return what counts for a queue, and ask the server if need be; see `asking`."""
    return answer(queue) or (yield from asking(queue))


def asking(queue: str) -> Steps[Known]:
    """Ask the server which format to write, and of a queue with shards whether it keeps keys where we do.

    Raises:
        InvalidSettings: it does not; nothing was sent.
        redis.exceptions.RedisError: the server did not answer; nothing was sent.
    """
    asked_ms = monotonic_ms()
    settings = conf.get_settings()
    configured = settings.find(queue)
    whole = configured and settings.sharded.get(configured.whole)
    try:
        if configured is not None and whole is not None:
            yield from sharding.agreeing(whole, configured)
        found = yield upgrading.read_format(DeliveryKeys.of(queue))
    except RedisError as error:
        mark_unsent(error)
        raise
    # This version cannot write below its oldest format; jobs in that format then wait for workers that read it.
    format = max(signing.OLDEST, min(int(found.written), signing.FORMAT))
    is_ranked = found.is_ranked and format >= PRIORITIES
    _known[queue] = known = Known(format, is_ranked, asked_ms + KEPT_MS)
    return known


def forget(**kwargs: Any) -> None:
    """Forget the servers' answers; connected to ``setting_changed``."""
    _known.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.formats")
