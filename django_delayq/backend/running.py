"""What a worker calls in place of a function of Django's ``@task``: the function, and around it what Django promises.

A task goes from READY to RUNNING and to an end, and receivers of Django's signals are called. An attempt that is not the
last one tells nothing of its failure: the task is READY again.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from django.dispatch import Signal
from django.utils import timezone
from redis.exceptions import RedisError

from django_delayq.backend.django_task import DelayqTask, check_path, in_queue
from django_delayq.backend.results import (
    UNKNOWN_WORKER,
    change,
    class_path,
    error_of,
    new_result,
    result_of,
)
from django_delayq.backend.upstream import (
    AnyContext,
    AnyResult,
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
    task_enqueued,
    task_finished,
    task_started,
)
from django_delayq.conf import get_settings
from django_delayq.exceptions import InvalidResult, JobCancelled, JobNotFound
from django_delayq.jobs import json_values
from django_delayq.jobs.context import current_job
from django_delayq.jobs.decisions import Cancel
from django_delayq.jobs.definition import signature_of
from django_delayq.jobs.exception_text import (
    class_path_of,
    text_of,
    traceback_of,
    trimmed,
)
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import aget_job, get_job
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")

_encoder = msgspec.json.Encoder()
#: Why the attempts before this one cannot be read: the server is away, or has just forgotten the job.
_UNREADABLE = (RedisError, OSError, JobNotFound, TaskResultDoesNotExist)


def wrapped(task: DelayqTask, sender: type) -> Callable[..., Any]:
    """Return what a worker calls in place of a task's function; ``sender`` is that of the signals."""
    func = task.func
    if asyncio.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            job = _job_here()
            result = await _aresult_here(task, job)
            await asend(task_started, sender, result)
            try:
                check_path(task)
                value = _kept(task, await func(*_before(task, result), *args, **kwargs))
                _succeed(result, value)
            except asyncio.CancelledError:
                # The worker ends, or the time limit has struck: only the worker knows which.
                raise
            except BaseException as error:
                secrets = secrets_of(job)
                if _fail(job, result, error, secrets):
                    await _asend_failure(sender, result, secrets)
                raise
            await asend(task_finished, sender, result)
            return value

        run: Callable[..., Any] = run_async
    else:

        @functools.wraps(func)
        def run_sync(*args: Any, **kwargs: Any) -> Any:
            job = _job_here()
            result = _result_here(task, job)
            send(task_started, sender, result)
            try:
                check_path(task)
                value = _kept(task, func(*_before(task, result), *args, **kwargs))
                _succeed(result, value)
            except BaseException as error:
                secrets = secrets_of(job)
                if _fail(job, result, error, secrets):
                    send_failure(sender, result, secrets)
                raise
            send(task_finished, sender, result)
            return value

        run = run_sync
    if task.takes_context:
        # Callers do not pass the context, so it is no argument of the job.
        signature = signature_of(func)
        parameters = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def secrets_of(job: Job[Any]) -> Sequence[str]:
    """Return how the values read that the task of a job has marked as sensitive."""
    return () if job.here is None else job.here.secrets()


def send(signal: Signal, sender: type, result: AnyResult) -> None:
    """Send one of Django's signals about tasks. A receiver that raises is logged by Django, and changes nothing."""
    signal.send_robust(sender, task_result=result)


async def asend(signal: Signal, sender: type, result: AnyResult) -> None:
    """`send` on the event loop, where Django calls sync receivers in a thread."""
    if is_only_logged(signal):
        # For a log line alone, a thread would cost more than the job.
        signal.send_robust(sender, task_result=result)
    else:
        await signal.asend_robust(sender, task_result=result)


class Masked(Exception):
    """Stands, where receivers look, for an exception that may have what its task has marked as sensitive."""


def send_failure(sender: type, result: AnyResult, secrets: Sequence[str]) -> None:
    """Send `task_finished` while an exception is handled: Django's own receiver logs that."""
    try:
        _stand_in(result, secrets)
    except Masked:
        send(task_finished, sender, result)
    else:
        send(task_finished, sender, result)


async def _asend_failure(
    sender: type, result: AnyResult, secrets: Sequence[str]
) -> None:
    try:
        _stand_in(result, secrets)
    except Masked:
        await asend(task_finished, sender, result)
    else:
        await asend(task_finished, sender, result)


def _stand_in(result: AnyResult, secrets: Sequence[str]) -> None:
    """Raise `Masked` in place of the exception that is handled, if that may have secrets."""
    if secrets:
        error = Masked(result.errors[-1].traceback.rstrip())
        try:
            raise error
        finally:
            # A log would show both.
            error.__context__ = None


def hears_enqueued() -> bool:
    """Whether anything comes of `task_enqueued`: a receiver beside Django's own, or a line in its log."""
    receivers = task_enqueued.receivers
    return (
        len(receivers) != 1
        or receivers[0][0][0] not in _LOGGING
        or signals.logger.isEnabledFor(logging.DEBUG)
    )


def is_only_logged(signal: Signal) -> bool:
    """Whether a signal has one receiver, Django's own, which logs."""
    return len(signal.receivers) == 1 and signal.receivers[0][0][0] in _LOGGING


#: As a signal tells its receivers apart.
_LOGGING = frozenset(
    {
        id(signals.log_task_enqueued),
        id(signals.log_task_started),
        id(signals.log_task_finished),
    }
)


def _job_here() -> Job[Any]:
    job = current_job()
    assert job is not None, "only a worker calls this"
    return job


def _result_here(task: DelayqTask, job: Job[Any]) -> AnyResult:
    now = timezone.now()
    if not job.attempts and not job.kills:
        return _running(_new(task, job), job, now)
    try:
        return _running_again(task, job, get_job(job.id), now)
    except _UNREADABLE as error:
        return _running_unread(task, job, error, now)


async def _aresult_here(task: DelayqTask, job: Job[Any]) -> AnyResult:
    now = timezone.now()
    if not job.attempts and not job.kills:
        return _running(_new(task, job), job, now)
    try:
        return _running_again(task, job, await aget_job(job.id), now)
    except _UNREADABLE as error:
        return _running_unread(task, job, error, now)


def _new(task: DelayqTask, job: Job[Any]) -> AnyResult:
    return new_result(
        in_queue(task, job.queue),
        job.id,
        task.backend,
        job.args,
        job.kwargs,
        job.enqueued_at,
    )


def _running(result: AnyResult, job: Job[Any], now: datetime) -> AnyResult:
    assert job.here is not None
    result.worker_ids.append(job.here.worker)
    change(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=result.started_at or now,
        last_attempted_at=now,
    )
    return result


def _running_again(
    task: DelayqTask, job: Job[Any], found: Job[Any], now: datetime
) -> AnyResult:
    result = result_of(found, task.backend)
    # The other attempts know no more of it.
    change(result, task=in_queue(task, job.queue))
    # The server knows the attempt that begins here by the id of the worker's claims.
    del result.worker_ids[job.attempts + job.kills :]
    return _running(result, job, now)


def _running_unread(
    task: DelayqTask, job: Job[Any], error: Exception, now: datetime
) -> AnyResult:
    logger.warning(
        "job %s (%s): its earlier attempts cannot be read, so its context lacks their worker ids and errors: %s",
        job.id,
        job.task,
        error,
    )
    result = _new(task, job)
    result.worker_ids.extend([UNKNOWN_WORKER] * (job.attempts + job.kills))
    return _running(result, job, now)


def _before(task: DelayqTask, result: AnyResult) -> tuple[AnyContext, ...]:
    return (TaskContext(task_result=result),) if task.takes_context else ()


def _kept(task: DelayqTask, value: object) -> Any:
    """Return what a function has returned as it is kept.

    Raises:
        InvalidResult: it cannot be kept.
    """
    try:
        plain = json_values.plain_value(normalize_json(value), "its result")
        size = len(_encoder.encode(plain))
    except Exception as error:
        raise InvalidResult(
            f"{task.module_path} returned a value that cannot be stored, and is not tried again: {text_of(error)}"
        ) from error
    if size > (most := get_settings().max_payload_bytes):
        raise InvalidResult(
            f"{task.module_path} returned {size:,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'], {most:,}, and is not tried"
            " again; store the data elsewhere and return its key"
        )
    return plain


def _succeed(result: AnyResult, value: object) -> None:
    change(
        result,
        status=TaskResultStatus.SUCCESSFUL,
        finished_at=timezone.now(),
        _return_value=value,
    )


class _Finishing:
    """Whether `finished_signal` sends `task_finished` for what ends without its call."""

    is_heard = False


finishing = _Finishing()
#: What `finished_signal` finds on an exception whose end its call has told.
_TOLD = "_delayq_task_finished"


def was_told(error: BaseException | None) -> bool:
    return getattr(error, _TOLD, False) is True


def _fail(
    job: Job[Any], result: AnyResult, error: BaseException, secrets: Sequence[str]
) -> bool:
    """Take in what a function has raised; return whether to tell now that the task has failed for good."""
    assert job.here is not None
    if not job.here.ends_with(error):
        return False
    is_cancelled = issubclass(type(error), Cancel)
    if finishing.is_heard:
        if is_cancelled:
            # It is told with all other jobs that are cancelled.
            return False
        with suppress(Exception):
            setattr(error, _TOLD, True)
    if is_cancelled:
        path, text = class_path(JobCancelled), text_of(error, secrets)
    else:
        error.with_traceback(trimmed(error.__traceback__))
        path, text = class_path_of(error), traceback_of(error, secrets)
    result.errors.append(error_of(path, text))
    change(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    return True
