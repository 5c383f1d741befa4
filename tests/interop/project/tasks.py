"""Handlers for what Java puts into the queues of this site: one that works, one that fails once, one that always does."""

from typing import Any

from django.conf import settings

from django_delayq import Backoff, current_job, delayed_task, queue_handler
from django_delayq.core.states import State
from tests.interop.values import describe
from tests.worker.records import record

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)


class Failure(Exception):
    """What these handlers fail with."""


def handled(value: Any) -> None:
    record("handled", value=describe(value), is_leased=_is_leased())


def retried(value: Any) -> None:
    record("retried", value=describe(value))
    if current_job().attempts == 0:
        raise Failure("on purpose, the first time")


def dead(value: Any) -> None:
    record("dead", value=describe(value))
    raise Failure("on purpose, each time")


@delayed_task
def remind(order: int, *, text: str) -> None:
    """What the view schedules; Java takes the call before anybody runs it."""


def _is_leased() -> bool:
    return current_job().refresh() is State.RUNNING


for queue in settings.DELAYQ["QUEUES"]:
    for handler in (handled, retried, dead):
        if queue.endswith(f"-{handler.__name__}"):
            queue_handler(
                queue, name=f"{queue}.handler", max_attempts=2, backoff=AT_ONCE
            )(handler)
