"""Which job runs here, for a task that wants to know."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from django_delayq.jobs.job import Job

#: Makes the handle; set by the worker around each attempt. Every coroutine and thread of the worker has its own.
running_job: ContextVar[Callable[[], Job[Any]] | None] = ContextVar(
    "django_delayq_running_job", default=None
)


def current_job() -> Job[Any] | None:
    """Return the job that runs here, or None outside a worker: `Job.attempts` says how often it failed before."""
    make = running_job.get()
    return None if make is None else make()
