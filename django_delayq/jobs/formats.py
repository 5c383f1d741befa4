"""In which format this process writes to a queue: no later than the queue's own, as the server says it.

A version that writes one format only asks nobody. One that writes a later one, too, asks before it sends, and goes by
the answer for a while; where it has none, it writes the oldest, which everybody reads. docs/wire-format.md, "Formats".
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

#: How long the answer of a queue counts. Whoever lowers a format waits for so long, see `Resigning`.
KEPT_MS = 5_000.0

# By queue: what the server said, and until when that counts by `monotonic_ms`.
_known: dict[str, tuple[int, float]] = {}


def known(queue: str) -> int:
    """Return the format to write, as far as that is known here."""
    if not _known:
        return signing.OLDEST
    format, until_ms = _known.get(queue, (signing.OLDEST, 0.0))
    return format if monotonic_ms() < until_ms else signing.OLDEST


def is_known(queue: str) -> bool:
    """Return whether nobody has to be asked before something is sent."""
    if signing.FORMAT == signing.OLDEST:
        return True
    return monotonic_ms() < _known.get(queue, (0, 0.0))[1]


def asking(queue: str) -> Steps[int]:
    """Ask the server which format to write.

    Raises:
        redis.exceptions.RedisError: it did not say; nothing was sent.
    """
    asked_ms = monotonic_ms()
    try:
        found = yield upgrading.read_format(DeliveryKeys.of(queue))
    except RedisError as error:
        mark_unsent(error)
        raise
    # Below the oldest nothing can be written here; what is written in the oldest waits then for those who read it.
    format = max(signing.OLDEST, min(int(found.written), signing.FORMAT))
    _known[queue] = format, asked_ms + KEPT_MS
    return format


def forget(**kwargs: Any) -> None:
    """Forget what servers said; connected to ``setting_changed``."""
    _known.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.formats")
