"""From a call to the server: `schedule`, `schedule_many` and their async twins."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db import transaction
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.delivery import operations
from django_delayq.delivery.operations import Scheduled, State
from django_delayq.exceptions import MaybeScheduled
from django_delayq.jobs.job import Job, explain
from django_delayq.jobs.registry import get_task
from django_delayq.wire.call import Call, arun, arun_all, run, run_all
from django_delayq.wire.delay import Delay

if TYPE_CHECKING:
    from django_delayq.jobs.decorator import DelayedTask

P = ParamSpec("P")
R = TypeVar("R")
#: Bytes of payload in one call of the schedule script.
SCHEDULE_BYTES = 1 << 20
#: Calls in one pipeline of `schedule_many`.
PIPELINE = 4


@overload
def schedule(task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
@overload
def schedule(task: str, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
def schedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """Call a task later.

    ``task`` is a decorated function or its registered name, ``delay`` a number of seconds, a timedelta or an aware
    datetime (one in the past means now). From the moment this returns the job runs at least once. One round trip.

    Raises:
        InvalidDelay, InvalidArguments, TaskNotFound, QueueNotFound: nothing was stored.
        redis.exceptions.RedisError: as the server or the connection said it, with a note on what became of the job.
    """
    found: DelayedTask[Any, Any] = get_task(task) if isinstance(task, str) else task
    return found.schedule(delay, *args, **kwargs)


@overload
async def aschedule(task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
@overload
async def aschedule(task: str, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
async def aschedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """`schedule` on the event loop."""
    found: DelayedTask[Any, Any] = get_task(task) if isinstance(task, str) else task
    return await found.aschedule(delay, *args, **kwargs)


def send(job: Job[R], on_commit: bool | str = False) -> Job[R]:
    """Send a prepared job, now or with the commit of the transaction."""
    if on_commit:
        transaction.on_commit(lambda: _send_after_commit(job), using=None if on_commit is True else on_commit)
        return job
    try:
        _take(job, run(conf.get_client(), _call([job]))[0])
    except RedisError as error:
        explain(error, [job])
        raise
    return job


async def asend(job: Job[R], on_commit: bool | str = False) -> Job[R]:
    """`send` on the event loop; transactions live in Django's thread for the database."""
    if on_commit:
        return await sync_to_async(send)(job, on_commit)
    client = await conf.get_async_client()
    try:
        _take(job, (await arun(client, _call([job])))[0])
    except RedisError as error:
        explain(error, [job])
        raise
    return job


def _send_after_commit(job: Job[Any]) -> None:
    try:
        send(job)
    except Exception as error:
        error.add_note(f"django-delayq: the transaction is committed, but job {job.id} ({job.task}) was not scheduled")
        raise


def _call(jobs: Sequence[Job[Any]]) -> Call[list[Scheduled]]:
    settings = conf.get_settings().queues[jobs[0].queue]
    call = operations.schedule(
        settings.keys,
        [job.unsent for job in jobs],
        frame_format=settings.frame_format,
        insertion_list=settings.insertion_list,
    )
    if any(job._was_sent for job in jobs):
        call = call.again()
    for job in jobs:
        job._was_sent = True
    return call


def _take(job: Job[Any], scheduled: Scheduled) -> None:
    if scheduled.holder:
        job.token, job.created = scheduled.holder, False
    job.start_time_ms = scheduled.start_time_ms
    job.state = State.SCHEDULED


def schedule_many(jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
    """Send jobs that ``task.prepare(delay, …)`` made, in pipelines of bounded calls.

    Not atomic as a whole, and it does not wait for a transaction's commit.

    Raises:
        MaybeScheduled: an error came up on the way; ``unsent`` holds the jobs that are not known to be stored. To
            send those again is safe.
    """
    sent: list[Job[Any]] = []
    waiting = list(jobs)
    batches = _batches(waiting)
    client = conf.get_client()
    for start in range(0, len(batches), PIPELINE):
        part = batches[start : start + PIPELINE]
        try:
            replies = run_all(client, [_call(batch) for batch in part])
        except RedisError as error:
            replies = [error] * len(part)
        _take_all(part, replies, waiting, sent)
    return sent


async def aschedule_many(jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
    """`schedule_many` on the event loop."""
    sent: list[Job[Any]] = []
    waiting = list(jobs)
    batches = _batches(waiting)
    client = await conf.get_async_client()
    for start in range(0, len(batches), PIPELINE):
        part = batches[start : start + PIPELINE]
        try:
            replies = await arun_all(client, [_call(batch) for batch in part])
        except RedisError as error:
            replies = [error] * len(part)
        _take_all(part, replies, waiting, sent)
    return sent


def _batches(jobs: list[Job[Any]]) -> list[list[Job[Any]]]:
    batches: list[list[Job[Any]]] = []
    for _, group in groupby(jobs, key=lambda job: job.queue):
        size, batch = 0, []
        for job in group:
            batch.append(job)
            size += len(job.unsent.payload)
            if len(batch) == operations.SCHEDULE_BATCH or size >= SCHEDULE_BYTES:
                batches.append(batch)
                size, batch = 0, []
        if batch:
            batches.append(batch)
    return batches


def _take_all(
    batches: list[list[Job[Any]]],
    replies: Sequence[list[Scheduled] | Exception],
    waiting: list[Job[Any]],
    sent: list[Job[Any]],
) -> None:
    failure: Exception | None = None
    for batch, reply in zip(batches, replies, strict=True):
        if isinstance(reply, Exception):
            failure = failure or reply
            continue
        for job, scheduled in zip(batch, reply, strict=True):
            _take(job, scheduled)
        sent += batch
    if failure is not None:
        stored = set(map(id, sent))
        unsent = [job for job in waiting if id(job) not in stored]
        if isinstance(failure, RedisError):
            explain(failure, unsent)
        raise MaybeScheduled(
            f"{len(sent)} of {len(waiting)} jobs are scheduled, {len(unsent)} are not known to be: {failure};"
            " pass error.unsent to schedule_many again, which is safe",
            unsent,
        ) from failure
