"""Runs an attempt in this thread: what the threads and the event loop of a worker do, without them.

Database connections are left alone: a test's own transaction is open on them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.context import running_job
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.stopping import NEVER, running_stop
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.time_limit import ThreadTimeLimit, exceeds
from django_delayq.worker.wheel import HashedWheelTimer

#: What ends an attempt when a task raises it. Ctrl-C ends the test.
_ENDS = (Exception, Decision, SystemExit)


def run_attempt(attempt: Attempt) -> BaseException | None:
    """Run an attempt to its verdict; return what its task, or reading it, has raised."""
    task, error = _begin(attempt)
    if task is None:
        return error
    if task.is_async:
        return async_to_sync(_await)(attempt, task)
    return _call(attempt, task)


async def arun_attempt(attempt: Attempt) -> BaseException | None:
    """`run_attempt` on the event loop; a sync task runs where Django's database connections belong."""
    task, error = _begin(attempt)
    if task is None:
        return error
    if task.is_async:
        return await _await(attempt, task)
    return await sync_to_async(_call)(attempt, task)


def _begin(attempt: Attempt) -> tuple[TaskDefinition | None, BaseException | None]:
    """Read an attempt; return its task, None if it does not start, and what reading it has raised."""
    read = attempt.read_if_quick() or attempt.read()
    task = attempt.take(read)
    error = read if isinstance(read, BaseException) else None
    return (task if task is not None and attempt.may_start() else None), error


@contextmanager
def _as_job(attempt: Attempt) -> Iterator[None]:
    """Have `current_job` return the job of an attempt."""
    job, stop = running_job.set(attempt.job), running_stop.set(NEVER)
    try:
        yield
    finally:
        running_stop.reset(stop)
        running_job.reset(job)


def _call(attempt: Attempt, task: TaskDefinition) -> BaseException | None:
    limit_s = attempt.time_limit_s
    with _as_job(attempt):
        try:
            if limit_s is None:
                value = task.function(*attempt.args, **attempt.kwargs)
            else:
                limit = ThreadTimeLimit(
                    _timer(), limit_s, name=task.name, stuck=lambda: None
                )
                value = limit.run(task.function, attempt.args, attempt.kwargs)
        except _ENDS as error:
            attempt.fail(error)
            return error
    attempt.succeed(value)
    return None


async def _await(attempt: Attempt, task: TaskDefinition) -> BaseException | None:
    with _as_job(attempt):
        try:
            value = await _limited(attempt, task)
        except _ENDS as error:
            attempt.fail(error)
            return error
    attempt.succeed(value)
    return None


async def _limited(attempt: Attempt, task: TaskDefinition) -> Any:
    limit_s = attempt.time_limit_s
    call = task.function(*attempt.args, **attempt.kwargs)
    if limit_s is None:
        return await call
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        exceeded: TimeLimitExceeded = exceeds(task.name, limit_s)
        raise exceeded from error


@cache
def _timer() -> HashedWheelTimer:
    """The timer of time limits; its thread ends with the process."""
    timer = HashedWheelTimer(name="delayq-time-limits")
    timer.start()
    return timer
