"""Runs an attempt in this thread: what the threads and the event loop of a worker do, without them.

Database connections are left alone: a test's own transaction is open on them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import cache, partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from django_delayq import conf
from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.context import running_job
from django_delayq.jobs.contexts import restored
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.middleware import Middleware, compose
from django_delayq.jobs.stop import NEVER, running_stop
from django_delayq.signals import heard
from django_delayq.worker import job_signals, payload
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.time_limit import ThreadTimeLimit, Timer, exceeds

#: What ends an attempt when a task raises it. Ctrl-C ends the test.
_ENDS = (Exception, Decision, SystemExit)


def is_on_loop() -> bool:
    """Whether an event loop runs this call, so that nothing else runs on that loop until the call returns."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_attempt(attempt: Attempt) -> BaseException | None:
    """Run an attempt to its verdict, and send the signals of both; return what its task, or reading it, has raised.

    A language or a context variable that the task sets ends with it, as in a worker.
    """
    return copy_context().run(_run, attempt)


def _run(attempt: Attempt) -> BaseException | None:
    task, error = _begin(attempt)
    if task is not None:
        is_async = task.is_async
        if is_async and is_on_loop():
            raise RuntimeError(
                f"{task.name} is an async task, and the event loop runs it only once this call has returned: await aschedule(),"
                " or aenqueue() of Django's tasks"
            )
        error = (async_to_sync(_await) if is_async else _call)(attempt, task)
    if heard.attempts:
        with _as_job(attempt):
            job_signals.send_end(attempt)
    return error


async def arun_attempt(attempt: Attempt) -> BaseException | None:
    """`run_attempt` on the event loop; a sync task runs where Django's database connections belong."""
    return await asyncio.create_task(_arun(attempt))


async def _arun(attempt: Attempt) -> BaseException | None:
    task, error = _begin(attempt)
    if task is not None:
        is_async = task.is_async
        error = await (_await if is_async else sync_to_async(_call))(attempt, task)
    if heard.attempts:
        with _as_job(attempt):
            await job_signals.asend_end(attempt)
    return error


def _begin(attempt: Attempt) -> tuple[TaskDefinition | None, BaseException | None]:
    """Read an attempt; return its task, None if it does not start, and what reading it has raised."""
    queue, leased = attempt.queue, attempt.leased
    read = payload.read_if_quick(queue, leased) or payload.read(queue, leased)
    task = attempt.take(read)
    error = read if isinstance(read, BaseException) else attempt.misfit
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
    around = compose(conf.get_settings())
    with _as_job(attempt):
        try:
            if heard.attempts:
                job_signals.send_started(attempt)
            with _restored(around, attempt):
                call: Callable[[], Any]
                call = partial(task.function, *attempt.args, **attempt.kwargs)
                if around is not None and around.call is not None:
                    call = partial(around.call, _job_within(attempt, call))
                value = _limited(attempt, task, call)
        except _ENDS as error:
            attempt.fail(error)
            return error
        if heard.attempts:
            attempt.value = value
    attempt.succeed(value)
    return None


async def _await(attempt: Attempt, task: TaskDefinition) -> BaseException | None:
    around = compose(conf.get_settings())
    with _as_job(attempt):
        try:
            if heard.attempts:
                await job_signals.asend_started(attempt)
            with _restored(around, attempt):
                call: Callable[[], Any]
                call = partial(task.function, *attempt.args, **attempt.kwargs)
                if around is not None and around.acall is not None:
                    call = partial(around.acall, _job_within(attempt, call))
                value = await _alimited(attempt, task, call)
        except _ENDS as error:
            attempt.fail(error)
            return error
        if heard.attempts:
            attempt.value = value
    attempt.succeed(value)
    return None


def _restored(
    around: Middleware | None, attempt: Attempt
) -> AbstractContextManager[None]:
    return nullcontext() if around is None else restored(around.travellers, attempt)


def _job_within(attempt: Attempt, call: Callable[[], Any]) -> Job[Any]:
    """Return the handle that middleware gets, which `current_job` returns from now on."""
    job = attempt.job(call)
    running_job.set(lambda: job)
    return job


def _limited(attempt: Attempt, task: TaskDefinition, call: Callable[[], Any]) -> Any:
    limit_s = attempt.time_limit_s
    if limit_s is None:
        return call()
    limit = ThreadTimeLimit(_timer(), limit_s, name=task.name, stuck=lambda: None)
    return limit.run(call, (), {})


async def _alimited(
    attempt: Attempt, task: TaskDefinition, call: Callable[[], Any]
) -> Any:
    limit_s = attempt.time_limit_s
    if limit_s is None:
        return await call()
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await call()
    except TimeoutError as error:
        if not limit.expired():
            raise
        exceeded: TimeLimitExceeded = exceeds(task.name, limit_s)
        raise exceeded from error


@cache
def _timer() -> Timer:
    """The timer of time limits; its thread ends with the process."""
    timer = Timer("delayq-time-limits")
    timer.start()
    return timer
