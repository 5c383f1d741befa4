"""What a call does to the job that holds its unique key: it may replace its arguments, or move its start time."""

import math
from typing import NamedTuple

from django_delayq.jobs.options import TaskOptions, seconds


class OnHolder(NamedTuple):
    """The effect of a later call on the waiting job that holds its unique key."""

    #: Whether it gets the arguments and the options of that call.
    replaces: bool
    #: Which of both start times it gets: the ``later``, the ``sooner``, or its own, if this is empty.
    moves: str
    #: For how long, from when the first call was scheduled, a later one may put it off.
    max_wait_ms: int | None


def on_holder(options: TaskOptions) -> OnHolder:
    """Read the options of a task."""
    what = options.duplicates
    longest_s = seconds(options.max_wait)
    return OnHolder(
        replaces="replace" in what,
        moves="later" if "postpone" in what else "sooner" if "sooner" in what else "",
        max_wait_ms=None if longest_s is None else math.ceil(longest_s * 1000),
    )
