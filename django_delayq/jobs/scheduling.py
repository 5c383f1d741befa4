"""`schedule` and `aschedule`: a task, a delay and its arguments."""

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.job import Job
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import show
from django_delayq.wire.delay import Delay

if TYPE_CHECKING:
    from django_delayq.jobs.decorator import DelayedTask

P = ParamSpec("P")
R = TypeVar("R")


@overload
def schedule(
    task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
def schedule(task: str, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
def schedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """Call a task later.

    ``task`` is a decorated function or its registered name, ``delay`` a number of seconds, a timedelta or an aware
    datetime (one in the past means now). From the moment this returns the job runs at least once. One round trip.

    Raises:
        InvalidDelay, InvalidArguments, InvalidTask, TaskNotFound, QueueNotFound: nothing was stored.
        redis.exceptions.RedisError: as the server or the connection said it, with a note on what became of the job.
    """
    return _find(task).schedule(delay, *args, **kwargs)


@overload
async def aschedule(
    task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
async def aschedule(
    task: str, delay: Delay, /, *args: Any, **kwargs: Any
) -> Job[Any]: ...
async def aschedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """`schedule` on the event loop."""
    return await _find(task).aschedule(delay, *args, **kwargs)


def _find(task: Any) -> "DelayedTask[Any, Any]":
    if isinstance(task, str):
        return get_task(task)
    if not hasattr(task, "prepare"):
        raise InvalidTask(
            f"{show(task)} is no task, so it cannot be scheduled; decorate the function with @delayed_task"
        )
    found: DelayedTask[Any, Any] = task
    return found
