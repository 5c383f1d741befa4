"""Reports of a process to the server, beside its jobs: how they ended, how far they are, that it lives."""

import heapq
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import chain, groupby
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.progress import JobProgress, note_progress
from django_delayq.core.worker_registry import (
    KEPT_MS,
    MOST_JOBS,
    Registered,
    RunningJob,
    WorkerInfo,
    register,
)
from django_delayq.exceptions import NotSigned
from django_delayq.jobs.workers import QUIET, STOP, WorkerState, read_order
from django_delayq.logs import get_log
from django_delayq.transport.call import Call
from django_delayq.transport.clients import own_clients
from django_delayq.transport.line import Line, UnderWay
from django_delayq.wire import signatures
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.memory_limit import Meter
from django_delayq.worker.outage import FORGOTTEN, forgotten_s, is_queues_own

logger = get_log("django_delayq.worker")

T = TypeVar("T")


def _ignore(*_: object) -> None:
    """Do nothing about a reply, or about one that is missing."""


class Report(ABC):
    """One kind of what is written. It logs once what the server refuses."""

    def __init__(self, line: Line, due_ms: float = float("inf")) -> None:
        self._line = line
        #: When to write, by `monotonic_ms`; infinite while there is nothing to write.
        self.due_ms = due_ms
        # What was asked of which queue, what takes the reply, and what happens without one.
        self._told: list[
            tuple[str, UnderWay[Any], Callable[[Any], object], Callable[[], object]]
        ] = []
        # What was logged of each queue.
        self._problems: dict[str, str] = {}

    @abstractmethod
    def tell(self) -> None:
        """Write it; the calls go out with the line's next calls, or at `learn`."""

    @abstractmethod
    def _refused(self, queue: str, error: ResponseError) -> None:
        """Log that the server refuses to store this."""

    def _ask(
        self,
        queue: str,
        call: Call[T],
        then: Callable[[T], object] = _ignore,
        lost: Callable[[], object] = _ignore,
    ) -> None:
        """Make a call. `learn` hands the reply to ``then``, or calls ``lost`` if none comes."""
        self._told.append((queue, self._line.ask(call), then, lost))

    @property
    def has_told(self) -> bool:
        """Whether replies to `tell` are still to be read."""
        return bool(self._told)

    def learn(self) -> None:
        """Take in the replies to `tell`, and log a refusal once; the refused part is not written again.

        If the server is away, this says nothing: every other call of the loop does.
        """
        told, self._told = self._told, []
        for queue, under_way, then, lost in told:
            try:
                reply = under_way.finish()
            except ResponseError as error:
                if self._problems.get(queue) != str(error):
                    self._problems[queue] = str(error)
                    self._refused(queue, error)
            except (RedisError, OSError):
                lost()
            else:
                self._problems.pop(queue, None)
                then(reply)


class EndReport(Report):
    """A report on the ends of jobs."""

    @abstractmethod
    def note(self, attempts: list[Attempt]) -> None:
        """Take in attempts of one queue with one verdict, which the server has settled."""


class Reports:
    """All of what one process writes. Owned by the claim loop's thread."""

    def __init__(self, *reports: Report) -> None:
        self._reports = list(reports)

    def add(self, report: Report) -> None:
        self._reports.append(report)

    @property
    def due_ms(self) -> float:
        """When to write next, by `monotonic_ms`; infinite while there is nothing to write."""
        return min([report.due_ms for report in self._reports])

    def tell(self, now_ms: float) -> None:
        """Write what is due."""
        for report in self._reports:
            if now_ms >= report.due_ms:
                report.tell()

    def learn(self) -> None:
        """Take in the replies to `tell`."""
        for report in self._reports:
            if report.has_told:
                report.learn()


#: The time between two writes.
PROGRESS_EVERY_MS = 500.0


class ProgressReport(Report):
    """The progress that the tasks of one process have reported. The claim loop's thread owns all but `note`."""

    def __init__(
        self, line: Line, dispatch: Dispatch, wake: Callable[[], None]
    ) -> None:
        """``wake`` ends the wait of the claim loop."""
        super().__init__(line)
        self._dispatch = dispatch
        self._wake = wake
        self._told_ms = float("-inf")
        # What is to be written of each attempt: those who run jobs put it in, the loop takes it out.
        self._latest: dict[Attempt, bytes] = {}
        # Those of which the server knows something.
        self._written: dict[Attempt, None] = {}

    def note(self, attempt: Attempt, stored: bytes) -> None:
        """Take in how far a job is. Any thread may call this."""
        self._latest[attempt] = stored
        if self.due_ms == float("inf"):
            # `tell` sets it back before it takes anything out, so what comes later is due again.
            self.due_ms = max(monotonic_ms(), self._told_ms + PROGRESS_EVERY_MS)
            self._wake()

    def tell(self) -> None:
        """Write what tasks have said, and forget what was said of attempts that have ended.

        What does not reach the server is not sent again: more follows soon.
        """
        self.due_ms = float("inf")
        self._told_ms = monotonic_ms()
        latest: dict[Attempt, bytes] = {}
        while self._latest:
            attempt, stored = self._latest.popitem()
            if attempt.verdict is None and attempt.has_lease:
                latest[attempt] = stored
        running = self._dispatch.running
        over = [attempt for attempt in self._written if attempt not in running]
        for attempt in over:
            del self._written[attempt]
        self._written |= dict.fromkeys(latest)
        told = chain(latest.items(), zip(over, [b""] * len(over), strict=True))
        for queue, jobs in groupby(sorted(told, key=_queue_of), key=_queue_of):
            self._note(queue, list(jobs))
        if self._written:
            # Their ends have to be noticed.
            self.due_ms = self._told_ms + PROGRESS_EVERY_MS

    def _note(self, queue: str, jobs: list[tuple[Attempt, bytes]]) -> None:
        keys = jobs[0][0].queue.keys
        for start in range(0, len(jobs), MAX_BATCH):
            part = [
                JobProgress(attempt.leased.token, attempt.leased.fence, stored)
                for attempt, stored in jobs[start : start + MAX_BATCH]
            ]
            self._ask(queue, note_progress(keys, part))

    def _refused(self, queue: str, error: ResponseError) -> None:
        logger.warning(
            "queue %s: the server refuses to store the progress of jobs, so it is not shown: %s",
            queue,
            error,
        )


def _queue_of(told: tuple[Attempt, bytes]) -> str:
    return told[0].queue.name


#: The time between two writes, unless an order is announced.
REGISTER_EVERY_MS = 5_000.0


class RegistryEntry(Report):
    """The entry of one process in the registry. Owned by the claim loop's thread."""

    def __init__(
        self,
        line: Line,
        owner: bytes,
        queues: Iterable[str],
        dispatch: Dispatch,
        *,
        state: Callable[[], WorkerState],
        quiet: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        """``state`` is asked each time; ``quiet`` and ``stop`` carry out the orders to this process."""
        super().__init__(line, due_ms=0.0)
        #: The name of this process in the registry.
        self.id = owner.hex()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._version = version("django-delayq")
        self._queues = list(queues)
        self._dispatch, self._state = dispatch, state
        self._do = {QUIET: quiet, STOP: stop}
        self._meter = Meter()
        self._since_ms = boottime_ms()
        # The last order that was read, whether it was obeyed or not.
        self._order = b""
        # When the server last took this, by its clock, epoch ms; None: it has not.
        self._kept_ms: int | None = None

    def tell(self) -> None:
        """Write that this process lives. Other threads set `due_ms` to 0 when an order may wait."""
        self.due_ms = monotonic_ms() + REGISTER_EVERY_MS
        call = register(get_settings().registry, self.id, self._info())
        self._ask("", call, self._take_in)

    def _info(self) -> WorkerInfo:
        dispatch = self._dispatch
        running = [
            attempt
            for attempt in dispatch.running
            if attempt.started_ms and attempt.verdict is None
        ]
        coroutines = sum([attempt.is_async for attempt in running])
        longest = heapq.nsmallest(MOST_JOBS, running, key=lambda each: each.started_ms)
        return WorkerInfo(
            self._host,
            self._pid,
            self._version,
            signatures.FORMAT,
            self._queues,
            dispatch.threads.size,
            dispatch.coroutines.size,
            len(running) - coroutines,
            coroutines,
            [_running_job(attempt) for attempt in longest],
            self._meter.read(),
            round(boottime_ms() - self._since_ms),
            self._state(),
        )

    def _take_in(self, reply: Registered) -> None:
        """Obey the order that came with the reply."""
        self._notice_loss(reply)
        if reply.order and reply.order != self._order:
            self._order = reply.order
            self._obey(reply)

    def _refused(self, queue: str, error: ResponseError) -> None:
        # What concerns the whole server, every other call of the loop says as well.
        if is_queues_own(error):
            logger.warning(
                "the server refuses the heartbeat of this process, so the list of workers lacks it and it cannot be stopped"
                " remotely: %s",
                error,
            )

    def _notice_loss(self, reply: Registered) -> None:
        """Say so if the server has forgotten that it took this."""
        kept_ms = self._kept_ms
        self._kept_ms = reply.now_ms if reply.is_kept else None
        ago_s = forgotten_s(reply.before_ms, kept_ms, reply.now_ms, KEPT_MS)
        if ago_s is not None:
            own_clients.note_change()
            logger.error("the server " + FORGOTTEN, ago_s)

    def _obey(self, reply: Registered) -> None:
        try:
            order = read_order(self.id, reply.order, reply.now_ms)
        except NotSigned as error:
            logger.warning("an order for this process was ignored: %s", error)
            return
        if order is None:
            logger.warning("an order for this process came too late and was ignored")
        elif (do := self._do.get(order.do)) is None:
            logger.warning(
                "an order for this process was ignored: this version does not know %r",
                order.do,
            )
        else:
            logger.warning(
                "this process was asked remotely to %s%s",
                _SAID[order.do],
                f", by {order.by}" if order.by else "",
            )
            do()


_SAID = {
    QUIET: "claim no more, and finish running jobs",
    STOP: "stop; it will not be replaced",
}


def _running_job(attempt: Attempt) -> RunningJob:
    return RunningJob(
        attempt.queue.name,
        attempt.leased.token,
        "" if attempt.task is None else attempt.task.name,
        max(0, round(attempt.started_ms + attempt.server_minus_local_ms)),
    )
