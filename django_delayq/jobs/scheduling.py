"""From a call to the server: `schedule`, `schedule_many` and their async twins."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db import transaction
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.delivery import operations
from django_delayq.delivery.operations import Scheduled, State
from django_delayq.exceptions import InvalidTask, MaybeScheduled
from django_delayq.jobs.job import Job, explain
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import show
from django_delayq.wire.call import Call, arun, run, run_stream
from django_delayq.wire.delay import Delay

if TYPE_CHECKING:
    from django_delayq.jobs.decorator import DelayedTask

P = ParamSpec("P")
R = TypeVar("R")
#: Bytes of payload in one call of the schedule script.
SCHEDULE_BYTES = 1 << 20


@overload
def schedule(
    task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
def schedule(task: str, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
def schedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """Call a task later.

    ``task`` is a decorated function or its registered name, ``delay`` a number of seconds, a timedelta or an aware
    datetime (one in the past means now). From the moment this returns the job runs at least once. One round trip.

    Raises:
        InvalidDelay, InvalidArguments, InvalidTask, TaskNotFound, QueueNotFound: nothing was stored.
        redis.exceptions.RedisError: as the server or the connection said it, with a note on what became of the job.
    """
    return _find(task).schedule(delay, *args, **kwargs)


@overload
async def aschedule(
    task: "DelayedTask[P, R]", delay: Delay, /, *args: P.args, **kwargs: P.kwargs
) -> Job[R]: ...
@overload
async def aschedule(
    task: str, delay: Delay, /, *args: Any, **kwargs: Any
) -> Job[Any]: ...
async def aschedule(task: Any, delay: Delay, /, *args: Any, **kwargs: Any) -> Job[Any]:
    """`schedule` on the event loop."""
    return await _find(task).aschedule(delay, *args, **kwargs)


def _find(task: Any) -> "DelayedTask[Any, Any]":
    if isinstance(task, str):
        return get_task(task)
    if not hasattr(task, "prepare"):
        raise InvalidTask(
            f"{show(task)} is no task, so it cannot be scheduled; decorate the function with @delayed_task"
        )
    found: DelayedTask[Any, Any] = task
    return found


def send(job: Job[R], on_commit: bool | str = False) -> Job[R]:
    """Send a prepared job, now or with the commit of the transaction."""
    if on_commit:
        transaction.on_commit(
            lambda: _send_after_commit(job),
            using=None if on_commit is True else on_commit,
        )
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
    if job.state is State.CANCELLED:
        return
    try:
        send(job)
    except Exception as error:
        error.add_note(
            f"django-delayq: the transaction is committed, but job {job.id} ({job.task}) was not scheduled"
        )
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
    """Send jobs that ``task.prepare(delay, …)`` made, in bounded calls; while one is under way the next is made.

    Not atomic as a whole, and it does not wait for a transaction's commit. Returns the jobs, stored.

    Raises:
        MaybeScheduled: an error came up on the way; ``unsent`` holds the jobs that are not known to be stored. To
            send those again is safe.
    """
    sending = _Sending(jobs)
    stream = sending.calls()
    for call in islice(stream, 1):
        # By itself: it brings the script to a server that has not seen it.
        sending.take(_run_or_error(call))
    if sending.failure is None:
        with conf.lent_client() as client:
            for reply in run_stream(client, stream):
                sending.take(reply)
    return sending.finish()


async def aschedule_many(jobs: Iterable[Job[Any]]) -> list[Job[Any]]:
    """`schedule_many` on the event loop."""
    sending = _Sending(jobs)
    client = await conf.get_async_client()
    for call in sending.calls():
        try:
            reply = await arun(client, call)
            sending.take(reply)
        except RedisError as error:
            sending.take(error)
            break
    return sending.finish()


def _run_or_error(call: Call[list[Scheduled]]) -> list[Scheduled] | Exception:
    try:
        return run(conf.get_client(), call)
    except RedisError as error:
        return error


class _Sending:
    """The jobs of one `schedule_many`: batches that are under way, what was stored, and what may not be."""

    def __init__(self, jobs: Iterable[Job[Any]]) -> None:
        self._jobs = iter(jobs)
        self._batch: list[Job[Any]] = []
        self._under_way: deque[list[Job[Any]]] = deque()
        self._sent: list[Job[Any]] = []
        self._unsent: list[Job[Any]] = []
        self.failure: Exception | None = None

    def calls(self) -> Iterator[Call[list[Scheduled]]]:
        """Yield one call a batch: of one queue, bounded in number and size."""
        size, tokens = 0, set[str]()
        for job in self._jobs:
            unsent = job.unsent
            is_full = self._batch and (
                len(self._batch) == operations.SCHEDULE_BATCH
                or size + len(unsent.payload) > SCHEDULE_BYTES
                or job.queue != self._batch[0].queue
                # The second time it is a repeat, and a call is one as a whole.
                or unsent.token in tokens
            )
            full = self._begin() if is_full else None
            # Kept before the call is handed out: after an error nobody comes back here.
            self._batch.append(job)
            if full is not None:
                yield full
                size, tokens = 0, set()
            size += len(unsent.payload)
            tokens.add(unsent.token)
        if self._batch:
            yield self._begin()

    def _begin(self) -> Call[list[Scheduled]]:
        batch, self._batch = self._batch, []
        self._under_way.append(batch)
        return _call(batch)

    def take(self, reply: list[Scheduled] | Exception) -> None:
        """Take in the reply to the oldest call that is under way."""
        batch = self._under_way.popleft()
        if isinstance(reply, Exception):
            self.failure = self.failure or reply
            self._unsent += batch
            return
        for job, scheduled in zip(batch, reply, strict=True):
            _take(job, scheduled)
        self._sent += batch

    def finish(self) -> list[Job[Any]]:
        """Return the jobs, or raise with those that are not known to be stored."""
        if self.failure is None:
            return self._sent
        self._unsent += self._batch
        self._unsent += self._jobs
        count = len(self._sent) + len(self._unsent)
        if isinstance(self.failure, RedisError):
            explain(self.failure, self._unsent)
        raise MaybeScheduled(
            f"{len(self._sent)} of {count} jobs are scheduled, {len(self._unsent)} are not known to be:"
            f" {self.failure}; pass error.unsent to schedule_many again, which is safe",
            self._unsent,
        ) from self.failure
