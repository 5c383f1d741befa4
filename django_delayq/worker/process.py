"""One worker process: what it is made of, how it starts and how it ends."""

import logging
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core.claim import LOOKS_A_LEASE
from django_delayq.jobs import outbox
from django_delayq.jobs.exception_text import class_name
from django_delayq.logs import get_log
from django_delayq.project_connection import connection_url
from django_delayq.redaction import redact
from django_delayq.transport.clients import own_clients
from django_delayq.transport.cluster_client import ClusterClient
from django_delayq.transport.connections import arguments_of
from django_delayq.transport.line import SILENT_TIMES, line_of
from django_delayq.transport.primary import pause_ms
from django_delayq.waiting.alarm import CAP_MS, Alarm
from django_delayq.waiting.channel import ChannelListener
from django_delayq.waiting.watch import DestinationWatch
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.forwards import Forwards
from django_delayq.worker.loop import ClaimLoop
from django_delayq.worker.memory_limit import MemoryLimit, MemoryWatch
from django_delayq.worker.operating_system import (
    HEEDED,
    flush_streams,
    handle_signal,
    make_children_ordinary,
)
from django_delayq.worker.outage import Flag, Outage
from django_delayq.worker.parts import SELF, Parts, WorkerOptions
from django_delayq.worker.queue_state import QueueState
from django_delayq.worker.settle import Ends
from django_delayq.worker.shutdown import Shutdown
from django_delayq.worker.watchdog import PULSE_S, Heartbeat, Pulse, Watchdog

logger = get_log("django_delayq.worker")

#: Exit status of a process that has settled everything. It is not 0, because a task may end the process with 0.
DONE = 74
#: As `DONE`, but the process wants to be replaced: after --max-jobs, above --max-memory, or because a task is stuck.
REPLACE_ME = 75
#: It cannot run what it claims: it is replaced, and its leases are given back like those of a process that died.
UNABLE = 76
#: The server refuses every connection, as DELAYQ['CONNECTION'] is wrong: neither this process nor its worker goes on.
#: EX_CONFIG of sysexits.h.
REFUSED = 78
#: How long a thread may keep the interpreter while another wants it; Python's default is ten times as long.
SWITCH_INTERVAL_S = 0.0005
#: An order has stopped it: it has settled everything, and is not replaced.
DISMISSED = 77
#: At the end, how long coroutines get to notice their cancellation, and idle threads to close their connections.
CANCEL_S = 1.0
#: The parts of a lease that a renewal may wait for a byte, and for a connection. A connection that dies in silence must
#: cost no lease; after an outage, a process must be back before its leases are over, 5/12 of a lease later.
RENEWAL_DEADLINES = {"socket_timeout": 1 / 6, "socket_connect_timeout": 1 / 10}
#: For so long the loop waits for a node of a cluster, s: the other nodes have jobs as well.
NODE_PATIENCE_S = 1.0
#: At the end, how long the log handlers get to write what they hold.
FLUSH_S = 1.0


class WorkerProcess:
    """Claims and runs jobs until it has to stop, or until there is nothing left to do."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        owner: bytes,
        follows_death: bool = False,
        memory_limit: MemoryLimit | None = None,
        accepted: Flag | None = None,
    ) -> None:
        """``accepted``: whether the server has ever served a process of this worker; None: this is the only one."""
        self._options = options
        worker = options.worker
        client = own_clients.make()
        self._listener = ChannelListener(client)
        self._destinations = DestinationWatch(client)
        claiming = forwarding = client
        if isinstance(client, ClusterClient):
            claiming = own_clients.make(**at_most(client, NODE_PATIENCE_S))
            forwarding = own_clients.make(**at_most(client, NODE_PATIENCE_S))
            # A node that hangs is waited for once. Renewals ask it each time, as leases may end meanwhile.
            for each in (claiming, forwarding):
                each.silent_times = SILENT_TIMES  # type: ignore[attr-defined]
        look_ms = worker.lease_ms / LOOKS_A_LEASE
        alarm: Alarm[str] = Alarm(cap_ms=min(CAP_MS, look_ms))
        wake = partial(alarm.wake, SELF)
        dispatch = Dispatch(
            worker,
            wake=wake,
            report=self._job_reports,
            max_jobs=options.max_jobs,
            follows_death=follows_death,
        )
        outage = Outage(pause_ms(claiming, look_ms), accepted or Flag())
        # A forward that waits for a node must not hold up the loop, so it has a client of its own.
        forwards = Forwards(forwarding, [each for each, _ in options.queues], wake)
        line = line_of(claiming)
        ends = Ends(
            line,
            dispatch,
            outage,
            forwards.note,
            [report(line) for report in options.reports],
        )
        self.loop = ClaimLoop(
            Parts(
                options=options,
                owner=owner,
                client=claiming,
                line=line,
                queues={
                    settings.name: QueueState(
                        claiming, settings, weight, owner, options.parts
                    )
                    for settings, weight in options.queues
                },
                alarm=alarm,
                dispatch=dispatch,
                outage=outage,
                forwards=forwards,
                ends=ends,
                shutdown=Shutdown(dispatch, ends),
            ),
            watch=self._watch,
            # The embedded server comes back by itself, unless its guardian has died as well.
            revive=connection_url if conf.get_settings().connection is None else None,
        )
        renewing = own_clients.make(**_renewal_deadlines(client, worker.lease_ms))
        for each in (claiming, forwarding, renewing):
            if isinstance(each, ClusterClient):
                # A slot that is being moved holds up its own queues only: they are asked again later.
                each.patience_s = 0.0
        self._watchdog = Watchdog(
            renewing,
            lease_ms=worker.lease_ms,
            executors=(dispatch.threads, dispatch.coroutines),
            running=dispatch.snapshot,
            cannot_work=dispatch.cannot_work,
            while_able=self._while_able,
        )
        self._heartbeat: Heartbeat | None = None
        if worker.heartbeat is not None:
            self._heartbeat = Heartbeat(
                worker.heartbeat,
                queues=list(self.loop.queues),
                turns=lambda: self.loop.turns,
            )
        self._memory: MemoryWatch | None = None
        if memory_limit is not None:
            self._memory = MemoryWatch(
                memory_limit,
                jobs=lambda: self.loop.ends.finished,
                retire=self.loop.retire,
            )
        # None: the app is not installed.
        rows = outbox.installed()
        self._relay = None if rows is None else rows.make_relay()
        # The supervisor's pipe and our own, once `heed` has been called.
        self._pipes: list[int] = []

    def _job_reports(self, attempt: Attempt, stored: bytes) -> None:
        self.loop.progress.note(attempt, stored)

    def _while_able(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.beat()
        if self._memory is not None:
            self._memory.look()

    def _watch(self, queue: str) -> None:
        destination = self.loop.queues[queue].settings.keys.queue.destination
        self._destinations.arm(
            destination, lambda: self.loop.destination_changed(queue)
        )

    def _subscribe(self, queue: QueueSettings) -> None:
        for channel in (queue.keys.queue.channel, queue.keys.channel):
            self._listener.subscribe(
                channel, lambda message: self.loop.message_came(queue.name, message)
            )

    def run(self, before_giving_back: Callable[[], None] = lambda: None) -> int:
        """Work, and return the exit status. ``before_giving_back`` is called last, see `Shutdown.finish`."""
        # The loop needs the interpreter for a fraction of a ms: it should not wait 5 ms for a busy task to release it.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            self._start()
        except RuntimeError as error:
            logger.error(
                "this process cannot start: %s; look at the limits on processes and threads (ulimit -u, pids.max)",
                error,
            )
            return UNABLE
        self.loop.run()
        return self._end(before_giving_back)

    def _start(self) -> None:
        self.loop.dispatch.start()
        if self._memory is not None:
            self._memory.start()
        self._watchdog.start()
        self.loop.forwards.start()
        if self._relay is not None:
            self._relay.start(sweep_first=self._options.is_burst)
        for queue in list(self.loop.queues.values()):
            self._subscribe(queue.settings)

    def _end(self, before_giving_back: Callable[[], None]) -> int:
        dispatch = self.loop.dispatch
        dispatch.threads.close()
        if self._relay is not None:
            self._relay.stop(CANCEL_S)
        dispatch.coroutines.stop(CANCEL_S)
        dispatch.threads.stop(CANCEL_S)
        if self.loop.is_refused:
            self.loop.forwards.stop(0.0)
            self._watchdog.stop()
            before_giving_back()
            return REFUSED
        try:
            self.loop.end(before_giving_back)
        except (RedisError, OSError) as error:
            logger.error(
                "could not report ended jobs to the server before this process ended; their leases will expire: %s",
                redact(str(error)),
            )
            return 1
        finally:
            self.loop.forwards.stop(CANCEL_S)
            self._watchdog.stop()
        if self.loop.dispatch.inability:
            return UNABLE
        is_burst = self._options.is_burst
        if self.loop.shutdown.is_dismissed:
            return DISMISSED
        if self.loop.dispatch.stuck or self.loop.shutdown.is_retiring:
            return REPLACE_ME
        if self._options.max_jobs is not None and not is_burst:
            return REPLACE_ME
        return 1 if is_burst and self.loop.has_problem else DONE

    # Signals.

    def heed(self, supervisor: int, pulse: Pulse) -> None:
        """Stop at SIGTERM and SIGHUP, at once at SIGQUIT, and when the other end of a pipe closes: the supervisor has died.

        The listening thread also beats the pulse: it waits for nothing else, not even for the server.

        SIGTERM may come twice: a signal to the whole process group reaches us, and then the supervisor sends one.
        Ctrl-C is left to the supervisor, which receives it as well.
        """
        # A Python handler runs between any two steps of the loop, which may hold its locks or be about to take them. So
        # a thread does the work, and these handlers only make the interpreter write to the pipe. SIGINT has one as
        # well: if it were ignored, programs that a task starts would inherit that.
        for number in (*HEEDED, signal.SIGINT):
            handle_signal(number, lambda number, frame: None)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._pipes = [supervisor, reader, writer]
        make_children_ordinary(self._pipes)
        threading.Thread(
            target=self._heed,
            args=(supervisor, reader, pulse),
            name="delayq-signals",
            daemon=True,
        ).start()

    def _heed(self, supervisor: int, signals: int, pulse: Pulse) -> None:
        try:
            self._listen(supervisor, signals, pulse)
        except BaseException as error:
            # A task may have closed the pipes.
            self.loop.dispatch.cannot_work(
                f"signals are not heard: {class_name(error)}"
            )

    def _listen(self, supervisor: int, signals: int, pulse: Pulse) -> None:
        waiting, is_over = [supervisor, signals], False
        while True:
            pulse.beat()
            ready = select.select(waiting, [], [], PULSE_S)[0]
            if not ready:
                continue
            came = os.read(signals, 64) if signals in ready else b""
            if supervisor in ready:
                logger.warning("the supervisor has ended, so this process ends")
                waiting.remove(supervisor)
            is_over = is_over or signal.SIGQUIT in came
            if supervisor in ready or not set(HEEDED).isdisjoint(came):
                self.loop.stop(0.0 if is_over else self._options.worker.grace_s)

    def close(self) -> None:
        """End threads and connections if the process itself continues."""
        self._watchdog.stop()
        self.loop.dispatch.close()
        self._listener.stop()
        self._destinations.stop()


def _renewal_deadlines(client: Redis, lease_ms: int) -> dict[str, float]:
    """Return the time-outs of the watchdog's client: those of the settings, or shorter ones."""
    return {
        name: at_most(client, part * lease_ms / 1000)[name]
        for name, part in RENEWAL_DEADLINES.items()
    }


def at_most(client: Redis, seconds: float) -> dict[str, float]:
    """Return the time-outs of a client's connections, or shorter ones."""
    told = arguments_of(client)
    return {
        name: min(told.get(name) or math.inf, seconds)
        for name in ("socket_timeout", "socket_connect_timeout")
    }


def flush_logs() -> None:
    """Write what the log and the standard streams hold, for `FLUSH_S` at most.

    The limit is needed because a thread that was stopped in the middle of a write never releases its handler's lock.
    """
    flusher = threading.Thread(target=_flush, daemon=True)
    flusher.start()
    flusher.join(FLUSH_S)


def _flush() -> None:
    logging.shutdown()
    flush_streams()
