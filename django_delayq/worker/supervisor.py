"""The parent of the worker processes: starts them, replaces those that die, and gives back the leases they held.

It has no threads, and talks to the server only when a process has died, so that it can fork at any time.
"""

import gc
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.core import claim as claim_calls
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.run import run
from django_delayq.worker import watchdog
from django_delayq.worker.django_connections import close_connections
from django_delayq.worker.memory_limit import MemoryLimit
from django_delayq.worker.operating_system import (
    flush_streams,
    handle_signal,
    reap_orphans,
)
from django_delayq.worker.outage import Flag, is_queues_own
from django_delayq.worker.parts import WorkerOptions
from django_delayq.worker.process import (
    DISMISSED,
    DONE,
    REFUSED,
    REPLACE_ME,
    WorkerProcess,
    flush_logs,
)
from django_delayq.worker.watchdog import STUCK_AFTER_MS, Pulse, Silence, is_stopped

logger = get_log("django_delayq.worker")

#: A process that dies within this time is replaced after a pause.
SOON_MS = 2_000.0
#: The pauses before a replacement: they double, from the first of these to the second.
PAUSE_MS = (100.0, 10_000.0)
#: The pause between attempts to give back the leases of a dead process while the server is away.
RECOVER_EVERY_MS = 1_000.0
#: Signals that stop a worker.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Stop signals within this time count as one: Ctrl-C reaches the whole group, and our parent may pass it on.
SAME_STOP_MS = 500.0
#: Written to the pipe ``stop_with``: running jobs are not waited for.
NOW = b"!"
#: A process that still runs so long after its grace is killed.
KILL_AFTER_MS = 10_000.0
#: The same after a second stop signal, which ends the grace.
KILL_NOW_AFTER_MS = 5_000.0
#: How often the supervisor looks at the pulses of its processes.
LISTEN_EVERY_MS = 5_000.0
#: Objects that a worker process makes, less those that it lets go of, before the collector looks at the new ones.
YOUNG_OBJECTS = 10_000


@dataclass(slots=True)
class _Child:
    pid: int
    owner: bytes
    started_ms: float
    pulse: Pulse
    silence: Silence


class Supervisor:
    """Runs the worker in the foreground; `run` returns the exit status."""

    def __init__(self, options: WorkerOptions, *, stop_with: int | None = None) -> None:
        """``stop_with`` is a pipe; the worker stops when its other end is closed, and at once when that says `NOW`."""
        self._options = options
        self._stop_with = stop_with
        self._memory_limit = (
            None if options.max_memory is None else MemoryLimit(options.max_memory)
        )
        # Whether the server has ever served one of our processes.
        self._accepted = Flag()
        self._children: dict[int, _Child] = {}
        # How many stop signals have come, and how many of them were handled.
        self._stops = 0
        self._stops_heeded = 0
        self._stopped_ms = 0.0
        self._kill_ms: float | None = None
        # When replacements may start.
        self._starts_ms: list[float] = []
        self._pause_ms = PAUSE_MS[0]
        self._orphans: list[bytes] = []
        self._recover_ms = 0.0
        self._listen_ms = 0.0
        self._has_lost_one = False
        self._status = 0
        # The children hold the reading end; the writing end closes with us, however we end.
        self._alive_reader, self._alive_writer = os.pipe()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)

    def run(self) -> int:
        """Work until a signal; in burst mode until every process has ended."""
        for number in STOPPING:
            handle_signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        _ease_collection()
        self._starts_ms = [monotonic_ms()] * self._options.worker.processes
        while self._children or self._starts_ms or self._orphans:
            self._reap()
            self._heed_stop()
            self._recover()
            self._start_due()
            self._kill_silent()
            self._kill_overdue()
            if self._children or self._starts_ms or self._orphans:
                self._sleep()
        signal.set_wakeup_fd(-1)
        return self._status

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # The handler passes the signal on by itself: the loop may be waiting for a server that does not answer. The
        # rest is left to the loop, because a handler that logs may interrupt code that holds the lock of the log.
        now_ms = monotonic_ms()
        if self._stops and now_ms < self._stopped_ms + SAME_STOP_MS:
            return
        self._stopped_ms = now_ms
        self._stop(self._stops + 1)

    def _stop(self, stops: int) -> None:
        self._stops = stops
        for pid in self._children:
            _send(pid, signal.SIGTERM if stops == 1 else signal.SIGQUIT)

    def _heed_stop(self) -> None:
        if self._stops:
            self._starts_ms.clear()
        if self._stops == self._stops_heeded:
            return
        left_ms = KILL_NOW_AFTER_MS
        if self._stops == 1:
            left_ms = self._options.worker.grace_s * 1000 + KILL_AFTER_MS
            logger.info(
                "stopping: running jobs have %g s to end; a second signal stops them at once",
                self._options.worker.grace_s,
            )
        else:
            logger.info("stopping now")
        self._stops_heeded = self._stops
        self._kill_ms = monotonic_ms() + left_ms

    def _start_due(self) -> None:
        if self._must_recover_first:
            return
        now_ms = monotonic_ms()
        due = [at_ms for at_ms in self._starts_ms if at_ms <= now_ms]
        self._starts_ms = [at_ms for at_ms in self._starts_ms if at_ms > now_ms]
        for _ in due:
            self._start()

    @property
    def _must_recover_first(self) -> bool:
        """Whether the leases of a dead process must be given back before another starts.

        In burst mode a process ends if nothing is due, and those jobs are due only once they are given back.
        """
        return self._options.is_burst and bool(self._orphans)

    def _start(self) -> None:
        owner = os.urandom(8)
        close_connections()
        # Otherwise the child would write what these buffers hold a second time.
        flush_streams()
        # A signal between the fork and the child's own handlers must not run our handlers in the child. A signal that
        # comes before we have noted the child must still reach it.
        blocked = {*STOPPING, signal.SIGQUIT, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            if self._stops:
                return
            try:
                pulse = Pulse()
                pid = os.fork()
            except OSError as error:
                # The machine has no room for one more process just now. The others go on.
                logger.error(
                    "cannot start a worker process, trying again in %g s: %s",
                    self._pause_ms / 1000,
                    error,
                )
                self._start_after_pause()
                return
            if pid == 0:
                self._be_child(owner, pulse, blocked)
            now_ms = monotonic_ms()
            silence = Silence(pulse, now_ms)
            self._children[pid] = _Child(pid, owner, now_ms, pulse, silence)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)

    def _be_child(
        self, owner: bytes, pulse: Pulse, blocked: set[signal.Signals]
    ) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ours = (self._alive_writer, self._wake_reader, self._wake_writer)
            for descriptor in ours:
                os.close(descriptor)
            process = WorkerProcess(
                self._options,
                owner=owner,
                follows_death=self._has_lost_one,
                memory_limit=self._memory_limit,
                accepted=self._accepted,
            )
            process.heed(self._alive_reader, pulse)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            status = process.run(flush_logs)
        except BaseException:
            logger.exception("a worker process failed")
            flush_logs()
        finally:
            # This does not wait for threads, which may never end.
            os._exit(status)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, raw = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            child = self._children.pop(pid)
            child.pulse.close()
            if self._options.worker.heartbeat is not None:
                watchdog.remove(Path(self._options.worker.heartbeat), pid)
            code = os.waitstatus_to_exitcode(raw)
            # A task may end its process with this status as well.
            is_refused = code == REFUSED and not self._accepted.is_set
            is_failure = not is_refused and code not in (DONE, REPLACE_ME, DISMISSED)
            if is_failure:
                self._orphans.append(child.owner)
                self._has_lost_one = True
                how = f"ended with status {code}"
                if code < 0:
                    # Not every signal has a name.
                    how = f"was killed by signal {-code}, {signal.strsignal(-code)}"
                logger.error(
                    "worker process %d %s; its leases are given back",
                    pid,
                    how,
                    extra={"delayq": {"process": pid}},
                )
            if is_refused:
                # The process has logged why, and all others would end like it.
                self._status = REFUSED
                self._stop(2)
            elif self._options.is_burst and code == 1:
                # The process has logged why, and its successor could not serve that queue either.
                self._status = 1
            elif self._stops:
                self._status = self._status or int(is_failure)
            elif code == DISMISSED:
                logger.warning(
                    "worker process %d was stopped remotely and is not replaced; %d others continue",
                    pid,
                    len(self._children),
                )
            elif not self._options.is_burst or code != DONE:
                self._replace(child, is_failure=is_failure)

        reap_orphans(self._children)

    def _replace(self, child: _Child, *, is_failure: bool) -> None:
        now_ms = monotonic_ms()
        if is_failure and now_ms - child.started_ms < SOON_MS:
            logger.warning("the next one starts in %g s", self._pause_ms / 1000)
            self._start_after_pause()
        else:
            self._pause_ms = PAUSE_MS[0]
            self._starts_ms.append(now_ms)

    def _start_after_pause(self) -> None:
        self._starts_ms.append(monotonic_ms() + self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MS[1])

    def _recover(self) -> None:
        """Give back the leases of dead processes; if the server is away, try again later."""
        if not self._orphans or monotonic_ms() < self._recover_ms:
            return
        try:
            client = own_clients.make()
            try:
                while self._orphans:
                    count = self._recover_owner(client, self._orphans[0])
                    what = "1 lease" if count == 1 else f"{count} leases"
                    verb = "is" if count == 1 else "are"
                    logger.info("%s of a dead process %s given back", what, verb)
                    self._orphans.pop(0)
            finally:
                client.close()
        except Exception as error:
            # Every exception is caught, because an embedded server may refuse to start, and nobody else replaces dead
            # processes.
            self._recover_ms = monotonic_ms() + RECOVER_EVERY_MS
            if self._stops:
                logger.error(
                    "the leases of a dead process will expire, because the server does not answer: %s",
                    redact(str(error)),
                )
                self._orphans.clear()

    def _recover_owner(self, client: Redis, owner: bytes) -> int:
        count, failure = 0, None
        for settings, _ in self._options.queues:
            rank = 0
            try:
                while rank >= 0:
                    recovered = run(
                        client,
                        claim_calls.recover(
                            settings.keys, owner=owner, first_rank=rank
                        ),
                    )
                    count += recovered.ended
                    rank = recovered.next_rank
            except RedisError as error:
                if is_of_node(error):
                    # The next try asks the node that holds the queue then.
                    failure = error
                    continue
                if not is_queues_own(error):
                    raise
                logger.error(
                    "queue %s: leases of a dead process will expire: %s",
                    settings.name,
                    error,
                )
        if failure is not None:
            raise failure
        return count

    def _kill_silent(self) -> None:
        """Kill a process that runs no Python code any more: it cannot end itself, and its leases are over."""
        now_ms = monotonic_ms()
        if now_ms < self._listen_ms:
            return
        self._listen_ms = now_ms + LISTEN_EVERY_MS
        longest_ms = self._options.worker.lease_ms + STUCK_AFTER_MS
        for child in self._children.values():
            # A stopped process cannot run any code, and goes on later as if nothing had happened.
            most_ms = 0.0 if is_stopped(child.pid) else 2 * LISTEN_EVERY_MS
            silent_ms = child.silence.look(now_ms, at_most_ms=most_ms)
            if silent_ms > longest_ms:
                _send(child.pid, signal.SIGKILL)
                logger.error(
                    "worker process %d has run no Python code for %.0f s, killing it: a task is in C code that does"
                    " not let go of the interpreter",
                    child.pid,
                    silent_ms / 1000,
                )

    def _kill_overdue(self) -> None:
        if self._kill_ms is not None and monotonic_ms() >= self._kill_ms:
            for pid in self._children:
                logger.error("worker process %d does not end, killing it", pid)
                _send(pid, signal.SIGKILL)
            self._kill_ms = None

    def _sleep(self) -> None:
        """Sleep until a signal comes or something has to be done."""
        deadlines = [] if self._must_recover_first else [*self._starts_ms]
        if self._children:
            deadlines.append(self._listen_ms)
        if self._kill_ms is not None:
            deadlines.append(self._kill_ms)
        if self._orphans:
            deadlines.append(self._recover_ms)
        timeout_s = None
        if deadlines:
            timeout_s = max(0.0, min(deadlines) - monotonic_ms()) / 1000
        waiting = [self._wake_reader]
        if self._stop_with is not None:
            waiting.append(self._stop_with)
        ready = select.select(waiting, [], [], timeout_s)[0]
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        if self._stop_with is not None and self._stop_with in ready:
            is_now = os.read(self._stop_with, 1) == NOW
            self._stop_with = None
            if is_now or not self._stops:
                self._stop(2 if is_now else 1)


def _ease_collection() -> None:
    """Have the garbage collector of the processes that are forked look at less, and less often.

    Jobs come and go in batches. With Python's own threshold of 700 objects a batch is looked at several times while it
    lives, and so is all that was imported: that took a quarter of a worker's time.
    """
    gc.collect()
    # What there is by now stays. Looking at it would also copy the pages that processes share.
    gc.freeze()
    young, *older = gc.get_threshold()
    # The project may have switched it off, or chosen a higher one.
    if 0 < young < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *older)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # The process has ended by itself, and waits to be reaped.
        return
