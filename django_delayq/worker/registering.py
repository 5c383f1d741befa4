"""The heartbeat of this process, what it runs, and the orders for it: one write every five seconds."""

import heapq
import os
import socket
from collections.abc import Callable
from importlib.metadata import version

from redis.exceptions import ResponseError

from django_delayq.clients.clients import own_clients
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.delivery.workers import (
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
from django_delayq.wire import signing
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.memory_limit import Meter
from django_delayq.worker.outage import FORGOTTEN, forgotten_s
from django_delayq.worker.parts import Parts
from django_delayq.worker.reports import Report
from django_delayq.worker.settlement import is_queues_own

logger = get_log("django_delayq.worker")

#: The time between two writes, unless an order is announced.
REGISTER_EVERY_MS = 5_000.0


class Registering(Report):
    """The entry of one process in the registry. Owned by the claim loop's thread."""

    def __init__(
        self, parts: Parts, *, quiet: Callable[[], None], stop: Callable[[], None]
    ) -> None:
        """``quiet`` and ``stop`` carry out the orders to this process."""
        super().__init__(parts.line, due_ms=0.0)
        #: What names this process in the registry.
        self.id = parts.owner.hex()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._version = version("django-delayq")
        self._queues = list(parts.queues)
        self._dispatch, self._shutdown = parts.dispatch, parts.shutdown
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
            signing.FORMAT,
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

    def _state(self) -> WorkerState:
        shutdown = self._shutdown
        if shutdown.stop_ms is not None or shutdown.takes_no_more():
            return WorkerState.STOPPING
        return WorkerState.QUIET if shutdown.is_quiet else WorkerState.WORKING

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
