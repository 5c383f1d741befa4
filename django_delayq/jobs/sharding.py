"""Makes sure that all processes agree on where a queue with shards keeps unique keys, limits and schedules.

Where two processes disagreed, each would keep a key by itself, and two jobs would hold it. So the first process writes
down how many shards keep keys, and a process with another number refuses to send, and to serve.
"""

from django.core.signals import setting_changed

from django_delayq.calls.steps import Steps
from django_delayq.conf import QueueSettings
from django_delayq.delivery.sharding import Shards, pin_shards
from django_delayq.exceptions import InvalidSettings

#: The queues of which this process has made sure.
_agreed: set[str] = set()


def agreeing(whole: QueueSettings) -> Steps[Shards | None]:
    """Make sure that this process agrees with the others; return what the server knows, None if nothing was asked.

    Raises:
        InvalidSettings: it does not agree.
        redis.exceptions.RedisError: the server did not answer.
    """
    if whole.name in _agreed:
        return None
    ours = whole.shards if whole.key_shards is None else whole.key_shards
    assert ours is not None
    found: Shards = yield pin_shards(whole.keys, whole.most_shards, ours)
    if found.with_keys != ours:
        name, theirs = whole.name, found.with_keys
        where = f"in its first {theirs} shards" if theirs else "under its bare name"
        raise InvalidSettings(
            f"queue {name!r} keeps unique keys, limits and schedules {where}, and these settings say"
            f" {ours}: set DELAYQ['QUEUES'][{name!r}]['KEY_SHARDS'] to {theirs}"
        )
    _agreed.add(whole.name)
    return found


def forget(**kwargs: object) -> None:
    """Ask again; connected to ``setting_changed``."""
    _agreed.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.sharding")
