"""The job that runs here, for tasks that ask for it."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from django_delayq.jobs.job import Job

#: Makes the handle. The worker sets this around each attempt; every coroutine and thread has its own.
running_job: ContextVar[Callable[[], Job[Any]] | None] = ContextVar(
    "django_delayq_running_job", default=None
)


def current_job() -> Job[Any] | None:
    """Return the job that is running, or None outside a worker. Its `attempts` is the number of earlier failures.

    Example::

        @delayed_task
        def fetch(url):
            job = current_job()
            print(job.id, job.attempts)
    """
    make = running_job.get()
    return None if make is None else make()
