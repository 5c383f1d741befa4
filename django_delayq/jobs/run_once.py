"""``@delayed_task(once=True)``: what the task does in a database is done once, however often its job runs.

The wrapper is made at decoration, so an attempt knows nothing of it. The table is that of ``django_delayq.outbox``.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs import outbox
from django_delayq.jobs.context import current_job
from django_delayq.redaction import show

#: The job in whose transaction this code runs, and the alias of the database. What calls the function once more there is
#: part of the same run.
_within: ContextVar[tuple[str, str]] = ContextVar(
    "django_delayq_within_once", default=("", "")
)


def alias_within() -> str:
    """Return the alias of the database in whose transaction a task with ``once`` runs here; empty: there is none."""
    return _within.get()[1]


def running_once(
    function: Callable[..., Any], name: str, once: bool | str
) -> Callable[..., Any]:
    """Return a function that does nothing if the job that it runs for has run before, with arguments of the same call.

    Called by anything but its own job, it is the function itself.

    Raises:
        InvalidTask: the function is ``async def``.
    """
    if inspect.iscoroutinefunction(function):
        raise InvalidTask(
            f"{name!r} is async def, and once={show(once)} runs a task in a transaction, which no await may cross: make it"
            " a plain def, or leave once out"
        )
    using = DEFAULT_DB_ALIAS if once is True else str(once)

    @functools.wraps(function)
    def run_once(*args: Any, **kwargs: Any) -> Any:
        job = current_job()
        if job is None or job.task != name or _within.get()[0] == job.id:
            return function(*args, **kwargs)
        later = "" if job.here is None else job.here.later
        token = _within.set((job.id, using))
        try:
            return outbox.needed(f"once={show(once)} of task {name!r}").run_once(
                job.id, using, functools.partial(function, *args, **kwargs), later
            )
        finally:
            _within.reset(token)

    return run_once
