"""`schedule` and `aschedule`: call a task later, given the task or its name."""

from collections.abc import Coroutine, Mapping, Sequence
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, overload

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.definition import name_of_djangos
from django_delayq.jobs.job import Job
from django_delayq.jobs.registry import get_task
from django_delayq.jobs.send_many import aschedule_many, schedule_many
from django_delayq.redaction import show
from django_delayq.wire.delay import Delay

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@overload
def schedule(
    task: DelayedTask[P, Coroutine[Any, Any, T]],
    delay: Delay,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Job[T]: ...
@overload
def schedule(
    task: DelayedTask[P, R], delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
def schedule(task: str, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
@overload
def schedule(prepared: Job[R], /) -> Job[R]: ...
def schedule(task: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """Schedule a call of a task, ``schedule(task, delay, …)``, or send a prepared job, ``schedule(job)``.

    ``task`` is a task or its registered name. ``delay`` is a number of seconds, a timedelta, or an aware datetime; a
    datetime in the past means now. When this function returns, or in a transaction when the commit returns, the job
    will run at least once. It takes one round trip.

    A job that ``task.prepare(delay, …)`` made is sent as `schedule_many` sends it, with the same errors.

    Example::

        schedule(cancel_unpaid, timedelta(minutes=15), order.pk)
        schedule(cancel_unpaid, 0, order.pk)  # now, in a worker
        schedule(cancel_unpaid, order.expires_at, order.pk)
        schedule("shop.tasks.cancel_unpaid", 900, order.pk)

    Raises:
        InvalidDelay, InvalidArguments, InvalidTask, TaskNotFound, QueueNotFound: nothing was stored.
        redis.exceptions.RedisError: the server's or connection's own error, with a note on what became of the job.
    """
    if isinstance(task, Job):
        _check_alone(args, kwargs)
        schedule_many([task])
        return task
    # Its own method is called, which a project's tests may have patched.
    found = task if isinstance(task, DelayedTask) else _find(task)
    return found.schedule(*args, **kwargs)


@overload
async def aschedule(
    task: DelayedTask[P, Coroutine[Any, Any, T]],
    delay: Delay,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Job[T]: ...
@overload
async def aschedule(
    task: DelayedTask[P, R], delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
async def aschedule(
    task: str, delay: Delay, /, *args: Any, **kwargs: Any
) -> Job[Any]: ...
@overload
async def aschedule(prepared: Job[R], /) -> Job[R]: ...
async def aschedule(task: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """`schedule` on the event loop.

    Example::

        job = await aschedule(cancel_unpaid, 900, order.pk)
    """
    if isinstance(task, Job):
        _check_alone(args, kwargs)
        await aschedule_many([task])
        return task
    found = task if isinstance(task, DelayedTask) else _find(task)
    return await found.aschedule(*args, **kwargs)


def _check_alone(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if args or kwargs:
        raise InvalidTask(
            "a prepared job has its delay and its arguments already: schedule(job) takes nothing else"
        )


def _advice(task: object) -> str:
    if not callable(task):
        return (
            "pass the task itself, without calling it, as in schedule(task, delay, …)"
        )
    if isinstance(task, FunctionType) and task.__name__ != "<lambda>":
        return "decorate the function with @delayed_task"
    return "write a function in tasks.py that calls it, and decorate that with @delayed_task"


def _find(task: object) -> DelayedTask[Any, Any]:
    found = get_task(task) if isinstance(task, str) else task
    if isinstance(found, DelayedTask):
        return found
    if (name := name_of_djangos(found)) is not None:
        raise InvalidTask(
            f"{name!r} is a Django task: schedule it with .using(run_after=…).enqueue(…)"
        )
    raise InvalidTask(
        f"{show(task)} is not a task, so it cannot be scheduled; {_advice(task)}"
    )
