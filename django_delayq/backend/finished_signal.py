"""Sends Django's ``task_finished`` for tasks whose end their own call does not see.

Such a task was too late to begin, killed its worker too often, exceeded its time limit on the event loop, was cancelled, or
is in quarantine. Only where somebody beside Django's own log listens, a worker looks for these ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone

from django_delayq.backend.django_task import BackendTask, in_queue
from django_delayq.backend.results import (
    ERRORS,
    UNKNOWN_WORKER,
    change,
    class_path,
    error_of,
    new_result,
)
from django_delayq.backend.running import (
    finishing,
    is_only_logged,
    secrets_of,
    send,
    send_failure,
    was_told,
)
from django_delayq.backend.upstream import TaskResultStatus, task_finished
from django_delayq.exceptions import JobFailed
from django_delayq.jobs.exception_text import class_path_of, traceback_of
from django_delayq.jobs.job import Job
from django_delayq.signals import (
    heard,
    job_cancelled,
    job_dead,
    job_expired,
    job_quarantined,
)

#: What is sent for ends that no call sees.
_SIGNALS = (job_cancelled, job_dead, job_expired, job_quarantined)
_UID = "django_delayq.backend"


def listen() -> None:
    """Listen for the ends of tasks in this worker, if anybody listens for them."""
    if not is_only_logged(task_finished):
        _listen()


@contextmanager
def listening() -> Iterator[None]:
    """Listen for the ends of tasks while a test is its own worker: a receiver may come at any time."""
    if finishing.is_heard:
        yield
        return
    before = heard.attempts
    _listen()
    try:
        yield
    finally:
        finishing.is_heard = False
        for signal in _SIGNALS:
            signal.disconnect(dispatch_uid=_UID)
        heard.attempts = before


def _listen() -> None:
    finishing.is_heard = True
    for signal in _SIGNALS:
        signal.connect(_finish, dispatch_uid=_UID)


def _finish(
    sender: object,
    job: Job[Any],
    reason: str = "",
    exception: BaseException | None = None,
    **named: Any,
) -> None:
    if not isinstance(sender, BackendTask) or was_told(exception):
        return
    task = sender.task
    result = new_result(
        in_queue(task, job.queue),
        job.id,
        task.backend,
        job.args,
        job.kwargs,
        job.enqueued_at,
    )
    cls = ERRORS.get(job.state, JobFailed)
    error = error_of(class_path(cls), f"{cls.__name__}: {reason}\n")
    secrets = secrets_of(job)
    if exception is not None:
        error = error_of(class_path_of(exception), traceback_of(exception, secrets))
    change(
        result,
        status=TaskResultStatus.FAILED,
        finished_at=timezone.now(),
        errors=[error],
        worker_ids=[UNKNOWN_WORKER] * (job.attempts + job.kills),
    )
    if exception is None:
        send(task_finished, sender.sender, result)
        return
    try:
        raise exception
    except BaseException:
        send_failure(sender.sender, result, secrets)
