"""Pausing a queue, or one task on it."""

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind, new_request
from django_delayq.transport.call import Call
from django_delayq.wire.published_reply import read_published

#: How many tasks may be paused on one queue: each of its claims carries their pauses.
MAX_PAUSED_TASKS = 100


def pause(
    keys: DeliveryKeys,
    *,
    task: str | None = None,
    until: str = "",
    by: str = "",
    reason: str = "",
) -> Call[int]:
    """Pause a queue, or a task on it; ``until`` has the form of a delay, and empty it has no end.

    Returns 1; or 0 if the pause would be over at once, -1 if `MAX_PAUSED_TASKS` are paused already, and then nothing has
    changed.
    """
    return bind("pause", keys)(
        read_published,
        task=task or "",
        when=until,
        by=by,
        why=reason,
        id=new_request(),
        most=MAX_PAUSED_TASKS,
    )


def resume(keys: DeliveryKeys, *, task: str | None = None) -> Call[int]:
    """End the pause of a queue, or of a task on it; returns 1 if there was one.

    Jobs that a pause of a task has held are then free, and `release` lets them run.
    """
    return bind("resume", keys)(
        read_published, task=task or "", id=new_request(), only_over=0
    )


def forget_over(keys: DeliveryKeys) -> Call[int]:
    """Forget the pauses of tasks that have ended by themselves."""
    return bind("resume", keys)(read_published, task="", id=new_request(), only_over=1)
