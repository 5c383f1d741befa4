"""The worker processes that the server lists, and commands to stop them."""

from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.core.worker_registry import (
    MOST_WORKERS,
    WORKERS_BATCH,
    SeenWorker,
    WorkerInfo,
    WorkersPage,
    announce_order,
    give_order,
    read_worker,
    read_workers,
)
from django_delayq.decoder import Decoder
from django_delayq.exceptions import DecodeError, InvalidSearch, NotSigned
from django_delayq.jobs.actor import actor
from django_delayq.redaction import show
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

#: What a process can be told.
QUIET, STOP = "quiet", "stop"
#: Calls of one write, a hundred processes each.
BATCHES_AT_ONCE = 10
#: How long an order holds: a process asks for orders every few seconds, and when it hears of one.
ORDER_MS = 60_000


class WorkerState(StrEnum):
    """The state of a process.

    Example::

        if worker.state is WorkerState.QUIET:
            stop_worker(worker.id)
    """

    WORKING = "working"
    #: It takes no new jobs, and continues those that it has.
    QUIET = "quiet"
    #: It ends when its jobs have ended.
    STOPPING = "stopping"


class WorkerJob(NamedTuple):
    """A job that a process runs.

    Example::

        for worker in workers():
            for job in worker.jobs:
                print(worker.name, job.task, job.since)
    """

    #: Id for `get_job`.
    id: str
    #: Name of its task; None while the job is being read.
    task: str | None
    #: Start of the attempt, by the server's clock.
    since: datetime


class Worker(NamedTuple):
    """One process of a worker.

    Example::

        busy = sum(worker.busy_threads for worker in workers())
    """

    #: Id for `quiet_worker` and `stop_worker`.
    id: str
    host: str
    pid: int
    #: The version of django-delayq that it runs, and the latest format of jobs that it reads.
    version: str
    format: int
    queues: list[str]
    state: WorkerState
    #: Number of threads and coroutines, and how many of them run a job.
    threads: int
    coroutines: int
    busy_threads: int
    busy_coroutines: int
    #: Its running jobs, at most a hundred, the longest running first.
    jobs: list[WorkerJob]
    #: Bytes that only this process uses.
    memory: int
    started_at: datetime
    #: Its last sign of life. A process without one for 30 s is no longer listed.
    seen_at: datetime

    @property
    def name(self) -> str:
        """Host and process number, as in the attempts of a job."""
        return f"{self.host}:{self.pid}"


class Order(msgspec.Struct):
    """A command that the server passes to one process."""

    #: `QUIET` or `STOP`.
    do: str
    #: When it is void, by the server's clock, epoch ms.
    till_ms: int
    #: Who gave it; empty: a version that did not say so.
    by: str = ""


_encode = msgspec.json.Encoder().encode
_decode = Decoder[Order](Order, trusted=True).decode


@performed
def workers(queue: str | None = None) -> Steps[list[Worker]]:
    """Return the running worker processes of a queue, or of all queues in the settings, ordered by host and number.

    It takes one round trip, and one more for each thousand processes after the first hundred.

    Example::

        for worker in workers("mail"):
            print(worker.host, worker.pid, worker.state, len(worker.jobs))

    Raises:
        QueueNotFound: the queue is not configured.
    """
    found, _ = yield from reading(queue)
    return found


aworkers = aperformed(workers)


@performed
def first_workers(most: int) -> Steps[tuple[list[Worker], int]]:
    """Return `workers` of the first ``most`` processes on the server, and how many more there are."""
    return reading(None, most)


@performed
def quiet_worker(worker_id: str) -> Steps[bool]:
    """Let a process finish its jobs without taking new ones; return False if the process does not exist.

    It reacts at once, or within 5 s if it cannot listen to its queues, and stays quiet until it is stopped. The other
    processes of its worker continue.

    Example::

        for worker in workers():
            if worker.host == "old-machine":
                quiet_worker(worker.id)

    Raises:
        InvalidSearch: this is not the id of a process.
        redis.exceptions.RedisError: the server's or connection's own error. To repeat the call is safe.
    """
    return _ordering(worker_id, QUIET)


aquiet_worker = aperformed(quiet_worker)


@performed
def stop_worker(worker_id: str) -> Steps[bool]:
    """Stop a process as SIGTERM does, without replacing it; return False if the process does not exist.

    It reacts as to `quiet_worker`, and its jobs have `GRACE` to end. When all its processes were stopped, a worker ends
    with status 0, and a supervisor may start it again.

    Example::

        stop_worker(worker.id)

    Raises:
        InvalidSearch: this is not the id of a process.
        redis.exceptions.RedisError: the server's or connection's own error. To repeat the call is safe.
    """
    return _ordering(worker_id, STOP)


astop_worker = aperformed(stop_worker)


def reading(
    queue: str | None, most: int = MOST_WORKERS
) -> Steps[tuple[list[Worker], int]]:
    """Read the processes that live and serve a queue, among the first ones, and how many more there are."""
    wanted = {each.name for each in conf.get_settings().queues_of(queue)}
    page: WorkersPage = yield read_workers(conf.get_settings().registry)
    pages, total = [page], page.total
    rest = range(WORKERS_BATCH, min(total, most), WORKERS_BATCH)
    # A process that says so meanwhile moves to the end: it may be read twice, or the one behind it not at all.
    for start in range(0, len(rest), BATCHES_AT_ONCE):
        calls = rest[start : start + BATCHES_AT_ONCE]
        for reply in (yield from together([_page(first) for first in calls])):
            if isinstance(reply, Exception):
                raise reply
            pages.append(reply)
    seen = {each.id: each for page in pages for each in page.workers}
    found = [_worker(each) for each in seen.values()]
    return (
        sorted(
            (each for each in found if not wanted.isdisjoint(each.queues)),
            key=lambda each: (each.host, each.pid),
        ),
        max(0, total - most),
    )


def _page(first: int) -> Steps[WorkersPage]:
    page: WorkersPage = yield read_workers(conf.get_settings().registry, first=first)
    return page


def _worker(seen: SeenWorker) -> Worker:
    info = seen.info
    return Worker(
        seen.id,
        info.host,
        info.pid,
        info.version,
        info.format,
        info.queues,
        _state(info.state),
        info.threads,
        info.coroutines,
        info.busy_threads,
        info.busy_coroutines,
        [
            WorkerJob(f"{job.queue}:{job.token}", job.task or None, _at(job.since_ms))
            for job in info.jobs
        ],
        info.memory,
        _at(max(0, seen.seen_ms - info.uptime_ms)),
        _at(seen.seen_ms),
    )


def _state(text: str) -> WorkerState:
    try:
        return WorkerState(text)
    except ValueError:
        # A later version knows more states; whatever it does, it works.
        return WorkerState.WORKING


def _at(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ordering(worker_id: str, do: str) -> Steps[bool]:
    if not isinstance(worker_id, str) or not worker_id:
        raise InvalidSearch(
            f"{show(worker_id)} is not the id of a worker's process; take one from workers()"
        )
    registry = conf.get_settings().registry
    page: WorkersPage = yield read_workers(registry, count=1)
    order = Order(do, page.now_ms + ORDER_MS, actor())
    sealed = conf.get_keyring().seal(_place(worker_id), _encode(order))
    is_there: bool = yield give_order(registry, worker_id, sealed)
    info: WorkerInfo | None = yield read_worker(registry, worker_id)
    if is_there and info is not None and info.queues:
        # An ACL may forbid it, or the connection break. The order is there, and the process finds it with its next write.
        with suppress(RedisError, OSError):
            yield announce_order(conf.keys_of(info.queues[0]))
    return is_there


def _place(worker_id: str) -> str:
    return f"worker {worker_id}"


def read_order(worker_id: str, sealed: bytes, now_ms: int) -> Order | None:
    """Return the order for a process; None: it has expired.

    Raises:
        NotSigned: this project has not given the order, or not to this process.
    """
    body = conf.get_keyring().unseal(_place(worker_id), sealed)
    try:
        order = _decode(body)
    except DecodeError as error:
        raise NotSigned(f"it cannot be read: {error}") from error
    return order if now_ms < order.till_ms else None
