"""The parent of the worker processes: starts them, replaces those that die, and gives back what they held.

It has no threads and talks to the server only when a process has died, so that it can fork at any time.
"""

import logging
import os
import select
import signal
from dataclasses import dataclass
from types import FrameType

from django.db import connections
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.clock import monotonic_ms
from django_delayq.delivery import operations
from django_delayq.wire.call import run
from django_delayq.worker.process import (
    REPLACE_ME,
    WorkerOptions,
    WorkerProcess,
    flush_and_exit,
)

logger = logging.getLogger("django_delayq.worker")

#: A process that dies sooner than this after its start is replaced after a pause.
SOON_MS = 2_000.0
#: Pauses before a replacement: from the first to the second of these, doubling.
PAUSE_MS = (100.0, 10_000.0)
#: Between attempts to give back the leases of a dead process while the server is away.
RECOVER_EVERY_MS = 1_000.0


@dataclass(slots=True)
class _Child:
    pid: int
    owner: bytes
    started_ms: float


class Supervisor:
    """Runs the worker in the foreground; `run` returns the exit status."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._children: dict[int, _Child] = {}
        self._stops = 0
        self._kill_ms: float | None = None
        # When a replacement may start; None: nothing to replace.
        self._starts_ms: list[float] = []
        self._pause_ms = PAUSE_MS[0]
        self._orphans: list[bytes] = []
        self._recover_ms = 0.0
        self._status = 0
        # The children hold the reading end; it ends with us, however we end.
        self._alive_reader, self._alive_writer = os.pipe()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)

    def run(self) -> int:
        """Work until told to stop; in burst mode until every process has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for _ in range(self._options.worker.processes):
            self._start()
        while self._children or self._starts_ms or self._orphans:
            self._reap()
            self._start_due()
            self._recover()
            self._press_on()
            if self._children or self._starts_ms or self._orphans:
                self._sleep()
        signal.set_wakeup_fd(-1)
        return self._status

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1
        self._starts_ms.clear()
        grace_s = self._options.worker.grace_s if self._stops == 1 else 0.0
        if self._stops == 1:
            logger.info(
                "stopping: what runs has %g s to end; again to stop now", grace_s
            )
        # A process gives back what it holds at the end of its grace; one that does not end is killed after that.
        self._kill_ms = (
            monotonic_ms() + grace_s * 1000 + (10_000 if self._stops == 1 else 2_000)
        )
        for pid in self._children:
            _send(pid, signal.SIGTERM)

    def _start(self) -> None:
        owner = os.urandom(8)
        connections.close_all()
        # In this order: a signal between fork and the child's own handlers must not run ours in the child.
        blocked = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        pid = os.fork()
        if pid == 0:
            self._be_child(owner, blocked)
        self._children[pid] = _Child(pid, owner, monotonic_ms())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)

    def _be_child(self, owner: bytes, blocked: set[signal.Signals]) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (
                self._alive_writer,
                self._wake_reader,
                self._wake_writer,
            ):
                os.close(descriptor)
            process = WorkerProcess(self._options, owner=owner)
            process.handle_signals()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            process.end_with(self._alive_reader)
            status = process.run()
        except BaseException:
            logger.exception("a worker process failed")
        finally:
            flush_and_exit(status)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, raw = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            child = self._children.pop(pid)
            code = os.waitstatus_to_exitcode(raw)
            if code not in (0, REPLACE_ME):
                self._orphans.append(child.owner)
                how = (
                    f"was killed by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with status {code}"
                )
                logger.error(
                    "worker process %d %s; its leases are given back", pid, how
                )
            if self._stops:
                self._status = self._status or int(code not in (0, REPLACE_ME))
            elif self._options.is_burst and code in (0, REPLACE_ME):
                continue
            else:
                self._replace(child, is_failure=code not in (0, REPLACE_ME))

    def _replace(self, child: _Child, *, is_failure: bool) -> None:
        now_ms = monotonic_ms()
        if is_failure and now_ms - child.started_ms < SOON_MS:
            self._starts_ms.append(now_ms + self._pause_ms)
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS[1])
        else:
            self._pause_ms = PAUSE_MS[0]
            self._starts_ms.append(now_ms)

    def _start_due(self) -> None:
        now_ms = monotonic_ms()
        due = [at for at in self._starts_ms if at <= now_ms]
        self._starts_ms = [at for at in self._starts_ms if at > now_ms]
        for _ in due:
            if not self._stops:
                self._start()

    def _recover(self) -> None:
        """Give back the leases of dead processes; a server that is away is asked again."""
        now_ms = monotonic_ms()
        if not self._orphans or now_ms < self._recover_ms:
            return
        self._recover_ms = now_ms + RECOVER_EVERY_MS
        client = conf.make_client()
        try:
            while self._orphans:
                count = sum(self._recover_owner(client, self._orphans[0]))
                logger.info("%d leases of a dead process are given back", count)
                self._orphans.pop(0)
        except (RedisError, OSError) as error:
            if self._stops:
                logger.error(
                    "the leases of a dead process end by themselves, the server is away: %s",
                    error,
                )
                self._orphans.clear()
        finally:
            client.close()
            client.connection_pool.disconnect()

    def _recover_owner(self, client: Redis, owner: bytes) -> list[int]:
        counts: list[int] = []
        for settings, _ in self._options.queues:
            rank = 0
            while rank >= 0:
                recovered = run(
                    client,
                    operations.recover(settings.keys, owner=owner, first_rank=rank),
                )
                counts.append(recovered.ended)
                rank = recovered.next_rank
        return counts

    def _press_on(self) -> None:
        if self._kill_ms is not None and monotonic_ms() >= self._kill_ms:
            for pid in self._children:
                logger.error("worker process %d does not end, killing it", pid)
                _send(pid, signal.SIGKILL)
            self._kill_ms = None

    def _sleep(self) -> None:
        """Sleep until a signal, or until something is to be done."""
        deadlines = [*self._starts_ms]
        if self._kill_ms is not None:
            deadlines.append(self._kill_ms)
        if self._orphans:
            deadlines.append(self._recover_ms)
        timeout_s = (
            max(0.0, min(deadlines) - monotonic_ms()) / 1000 if deadlines else None
        )
        if select.select([self._wake_reader], [], [], timeout_s)[0]:
            os.read(self._wake_reader, 4096)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has ended by itself, and waits to be reaped.
        return
