"""Which job runs here, for a task that wants to know."""

from contextvars import ContextVar
from typing import Any

from django_delayq.jobs.job import Job

#: Set by the worker around each attempt; every coroutine and thread of the worker has its own.
running_job: ContextVar[Job[Any] | None] = ContextVar("django_delayq_running_job", default=None)


def current_job() -> Job[Any] | None:
    """Return the job that runs here, or None outside a worker: `Job.attempts` says how often it failed before."""
    return running_job.get()
