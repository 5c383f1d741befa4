"""`frozen_queue`: queues in memory whose clock stands still until the test moves it.

The calls are those of every other server, and so are the scripts. Due jobs run through the attempt of a worker,
one after the other, in this thread.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any, TypedDict, Unpack

from asgiref.sync import sync_to_async

from django_delayq import conf
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.core import claim as claim_calls
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.claim import Claimed
from django_delayq.core.forward_calls import Forward
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidDelay
from django_delayq.features.pauses.api import paused
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.arguments import call_text
from django_delayq.jobs.find import find_jobs
from django_delayq.management.backends import listening
from django_delayq.redaction import brief, show
from django_delayq.slices import loaded
from django_delayq.testing import mode
from django_delayq.testing.capture import watch_tests
from django_delayq.testing.inline_executor import is_on_loop, run_attempt
from django_delayq.testing.local_connection import InProcessServer
from django_delayq.testing.memory.memory_server import MemoryServer
from django_delayq.transport.clients import own_clients
from django_delayq.transport.line import Line, UnderWay
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.server import Server
from django_delayq.worker import job_signals
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.forwards import forward_at_once
from django_delayq.worker.queue_state import QueueState
from django_delayq.worker.settle import Settlement, log_end

try:
    import time_machine
except ImportError:
    time_machine = None  # type: ignore[assignment]  # then Django's clock stays where it is

#: The name by which this process claims.
OWNER = b"frozen--"
#: So many jobs run at one moment before the test counts as one that never ends: jobs that schedule themselves anew.
MOST_AT_ONCE = 10_000
#: What waits now, and no claim brings, is asked for again after so long; then after twice as long, and so on.
PATIENCE_US = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: How many jobs an error lists.
LISTED = 10


class Units(TypedDict, total=False):
    """Arguments of a timedelta."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float
    microseconds: float


@brief
@dataclass(frozen=True)
class Ran:
    """One attempt that has ended."""

    #: The job, as `get_job` takes it.
    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: In the words of the log: ``succeeded``, ``retrying``, ``dead``, …
    outcome: str
    #: When it ran, by the frozen clock.
    at: datetime
    #: What the task raised.
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{call_text(self.task, self.args, self.kwargs)}: {self.outcome}"


class _AtOnce(Line):
    """A line whose calls are made at once: nothing works meanwhile in memory."""

    def ask(self, call: Any) -> UnderWay[Any]:
        under_way: UnderWay[Any] = UnderWay(self, _AS_READ)
        try:
            under_way.tell(run(self.client, call))
        except Exception as error:
            under_way.tell(error)
        return under_way


#: A call whose reply was read already.
_AS_READ: Command[Any] = Command(())


class _SendsHere(job_signals.SignalThread):
    """Sends signals in the thread of the test, whose transaction receivers see, and before the test continues."""

    def call(self, call: Callable[[], None], *, count: int = 1, size: int = 0) -> None:
        call()


class FrozenQueue:
    """All queues of the settings, in memory, with a clock that the test moves."""

    def __init__(self, now: datetime | None = None, *, periodic: bool = False) -> None:
        begin = datetime.now(UTC) if now is None else now
        if not isinstance(begin, datetime):
            raise InvalidDelay(f"now takes an aware datetime; got {show(begin)}")
        if begin.utcoffset() is None:
            raise InvalidDelay(
                f"now={show(begin)} needs a time zone to say when it is; django.utils.timezone.make_aware() adds one"
            )
        # Whole ms, in which start times are.
        self._now_us = int(begin.timestamp() * 1000) * 1000
        self._has_periods = periodic
        self._parts = loaded("part", without="" if periodic else "schedules")
        self._reports = loaded("report", without="statistics")
        #: The server; its keys can be looked at.
        self.server = MemoryServer(lambda: self._now_us)
        self._queues: dict[str, QueueState] = {}
        # By queue: when something happens there next, as its last claim said.
        self._events: dict[str, float] = {}
        self._traveller: Any = None
        self._is_over = False

    def __repr__(self) -> str:
        return f"<FrozenQueue at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """Time of the server, in UTC. With time-machine installed, Django has the same time."""
        # Not by a float, which has no room for the microseconds of far years.
        return _EPOCH + timedelta(microseconds=self._now_us)

    def advance(
        self, delta: timedelta | float | None = None, /, **units: Unpack[Units]
    ) -> list[Ran]:
        """Let time pass and run the jobs that become due, in order; return the attempts that ended.

        Give arguments of a timedelta (``advance(minutes=15)``), a timedelta, or seconds (``advance(900)``). Jobs that are
        scheduled meanwhile and retries run as well, if they become due within this time.

        Raises:
            InvalidDelay: the argument is not a time, or is negative.
            RuntimeError: the block of the queue has ended, or the call is on an event loop.
        """
        if self._is_over:
            raise RuntimeError(
                "this frozen queue has ended: call this inside the block of with frozen_queue() as q"
            )
        if is_on_loop():
            raise RuntimeError(
                "advance() and run_due() hold up the event loop, on which jobs may have to run: await q.aadvance() or"
                " q.arun_due()"
            )
        passes = _passing(delta, units)
        try:
            until = self.now + passes
        except OverflowError as error:
            raise InvalidDelay(
                f"advance() cannot go beyond the year {MAXYEAR}; it is {self.now.isoformat()}, and {show(passes)} was to pass"
            ) from error
        until_us = (until - _EPOCH) // timedelta(microseconds=1)
        ran = self._run_due()
        patience_us = PATIENCE_US
        while (next_us := self._next_us()) < until_us:
            if next_us <= self._now_us:
                # Something waits that no claim brings. It is asked for again later, and more and more seldom.
                next_us = min(self._now_us + patience_us, until_us)
                patience_us *= 2
            self._move_to(next_us)
            ran += self._run_due()
        if until_us > self._now_us:
            self._move_to(until_us)
            ran += self._run_due()
        return ran

    async def aadvance(
        self, delta: timedelta | float | None = None, /, **units: Unpack[Units]
    ) -> list[Ran]:
        """`advance` for a test on the event loop. Jobs run in the thread to which Django's connections belong."""
        return await sync_to_async(self.advance)(delta, **units)

    def run_due(self) -> list[Ran]:
        """Run the jobs that are due now, without letting time pass."""
        return self.advance(0)

    async def arun_due(self) -> list[Ran]:
        """`run_due` for a test on the event loop."""
        return await self.aadvance(0)

    @property
    def due(self) -> list[str]:
        """Due jobs that have not run, each as text, without those of paused queues."""
        found: dict[str, str] = {}
        for state in self._states():
            name = state.settings.name
            if _is_paused(name):
                continue
            for job in find_jobs(queue=name, state=State.DUE):
                found[job.id] = f"{job.task or 'a foreign element'} ({job.id})"
        return list(found.values())

    def check_left(self) -> None:
        """Make sure that nothing is due.

        Raises:
            AssertionError: something is, by name.
        """
        due = self.due
        if due:
            more = f" and {len(due) - LISTED} more" if len(due) > LISTED else ""
            raise AssertionError(
                f"{'1 job is due and has' if len(due) == 1 else f'{len(due)} jobs are due and have'} not run: {', '.join(due[:LISTED])}{more}. Run them with q.run_due(), or"
                " advance(), cancel them, or leave them with frozen_queue(leave_due=True)"
            )

    # Queues.

    def _states(self) -> list[QueueState]:
        """Return what is known of each queue that has something, as a worker's loop knows it."""
        for settings in conf.get_settings().queues_of():
            name = settings.name
            if name not in self._queues and self._has_any(settings.keys):
                state = QueueState(self._client, settings, 1, OWNER, self._parts)
                self._queues[name] = state
                state.upkeep.begin()
        return list(self._queues.values())

    def _has_any(self, keys: DeliveryKeys) -> bool:
        return self._has_periods or any(
            map(
                self._has,
                (
                    keys.queue.timeout_set,
                    keys.queue.destination,
                    keys.payloads,
                    keys.schedules,
                ),
            )
        )

    def _has(self, key: str) -> bool:
        return key.encode() in self.server.keyspace.keys

    def _run_due(self) -> list[Ran]:
        """Run what is due at this moment, jobs that come meanwhile included."""
        ran: list[Ran] = []
        is_progress = True
        while is_progress:
            is_progress = False
            for state in self._states():
                self._take_turns(state)
                while (one := self._run_one(state)) is not None:
                    ran.append(one)
                    is_progress = True
                    if len(ran) > MOST_AT_ONCE:
                        raise AssertionError(
                            f"{MOST_AT_ONCE:,} jobs have run at {self.now.isoformat()} and there are more, the last was {one};"
                            " does a job schedule itself with a delay of 0?"
                        )
        return ran

    def _take_turns(self, state: QueueState) -> None:
        """Have features do what is due, such as moving periodic schedules on, and enrolling those in code."""
        state.is_paused = _is_paused(state.settings.name)
        for part in state.parts:
            if part.wakes:
                part.next_ms = 0.0
            while part.is_due(monotonic_ms(), self._now_us) and part.turn(
                monotonic_ms(), self._now_us
            ):
                continue

    def _claim(self, state: QueueState) -> Claimed:
        settings, worker = state.settings, conf.get_settings().worker
        reply = run(
            self._client,
            claim_calls.claim(
                settings.keys,
                owner=OWNER,
                request=os.urandom(8),
                limit=1,
                lease_ms=worker.lease_ms,
                mode=state.mode,
                max_kills=worker.max_kills,
                priority_step_ms=settings.priority_step_ms,
                keeps_ended=settings.keep_ended > 0,
                has_slots=state.has_slots,
                limit_text=settings.limit_text,
                frame_format=settings.frame_format,
            ),
        )
        if reply.newer_format:
            raise claim_calls.newer_format(settings.name, reply.newer_format)
        for part in state.parts:
            part.take_in(reply)
        if reply.limits is not None and reply.limits.has_slots:
            state.has_slots = True
        if reply.ends is not None:
            job_signals.send_ends(settings.name, reply.ends)
        return reply

    def _run_one(self, state: QueueState) -> Ran | None:
        """Run the next job of a queue that is due; return None if there is none."""
        if self._has(state.settings.keys.held):
            # What was held may run now.
            state.held.turn(monotonic_ms(), MAX_BATCH)
        reply = self._claim(state)
        if not reply.jobs and reply.wait_us == 0:
            # On a shared queue, this claim has transferred what the next one takes.
            reply = self._claim(state)
        if not reply.jobs:
            wait_us = state.wait_us(reply)
            self._events[state.settings.name] = (
                math.inf if wait_us < 0 else self._now_us + wait_us
            )
            return None
        (leased,) = reply.jobs
        offset_ms = reply.now_us / 1000 - boottime_ms()
        attempt = Attempt(state.settings, leased, math.inf, offset_ms, state.gates)
        # A claim leases such a job only if others follow it, for a worker to bury it.
        most_kills = conf.get_settings().worker.max_kills
        attempt.is_out_of_kills = leased.kills > most_kills
        error = run_attempt(attempt)
        at = self.now
        self._settle(attempt, has_slots=state.has_slots)
        # As the worker does it, once the end is settled.
        final = attempt.verdict
        log_end(attempt)
        return Ran(
            attempt.id,
            attempt.name,
            attempt.args,
            attempt.kwargs,
            "" if final is None else final.value,
            at,
            error,
        )

    def _settle(self, attempt: Attempt, *, has_slots: bool) -> None:
        line = _AtOnce(self._client)
        reports = [report(line) for report in self._reports]
        settlement = Settlement(line, self._forward, reports=reports)
        if has_slots:
            settlement.limited.add(attempt.queue.name)
        settlement.ended.append(attempt)
        _, failure = settlement.settle(force=True)
        if failure is not None:
            raise failure
        for report in reports:
            report.tell()
            report.learn()

    def _forward(
        self,
        source: conf.QueueSettings,
        queue: str,
        forwards: Sequence[Forward],
        _: float,
    ) -> None:
        forward_at_once(self._client, source, queue)

    # Time.

    def _next_us(self) -> float:
        """Return when something happens next, epoch us; infinite: nothing will."""
        first = min(self._events.values(), default=math.inf)
        for state in self._states():
            # What comes while the queue is paused is missed, as by a worker.
            if not state.is_paused:
                first = min(first, *(part.due_us for part in state.parts))
        return first

    def _move_to(self, now_us: float) -> None:
        if now_us > self._now_us:
            self._now_us = int(now_us)
            if self._traveller is not None:
                self._traveller.move_to(self._now_us / 1_000_000)

    def start(self) -> None:
        """Begin, and have Django's clock stand still at this moment, where time-machine is installed."""
        self._client = own_clients.make()
        self._signal_thread, job_signals.signal_thread = (
            job_signals.signal_thread,
            _SendsHere(),
        )
        if time_machine is None:
            return
        travel = time_machine.travel(self._now_us / 1_000_000, tick=False)
        try:
            self._traveller = travel.start()
        except RuntimeError:
            # freezegun has stopped Django's clock; the two do not go together, and the test asked for that one.
            return
        self._travel = travel

    def stop(self) -> None:
        """End, and let Django's clock go again."""
        self._is_over = True
        job_signals.signal_thread = self._signal_thread
        self._client.close()
        if self._traveller is not None:
            self._traveller = None
            self._travel.stop()


def _is_paused(queue: str) -> bool:
    return any(each.task is None for each in paused(queue))


#: The queues of tests whose settings say ``frozen``, once one of them has used them.
_of_tests: list[MemoryServer] = []


def frozen_server() -> Server:
    """Return the server of tests whose settings say ``frozen``. Its clock is that of the process; nothing runs.

    Raises:
        InvalidSettings: lupa is not installed.
    """
    if not _of_tests:
        watch_tests()
        _of_tests.append(MemoryServer(lambda: time.time_ns() // 1_000))
    return InProcessServer.to(_of_tests[0])


def clear_frozen() -> None:
    """Empty those queues."""
    for made in _of_tests:
        made.keyspace.keys.clear()
        shard_agreement.forget()


def _passing(delta: timedelta | float | None, units: Units) -> timedelta:
    if delta is None and not units:
        raise InvalidDelay(
            "advance() takes how much time passes: advance(minutes=15), a timedelta, or seconds; run_due() runs what is due"
            " now"
        )
    try:
        passes = timedelta(**units)
        if delta is not None:
            passes += (
                delta if isinstance(delta, timedelta) else timedelta(seconds=delta)
            )
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidDelay(
            f"advance() takes a timedelta, a number of seconds, or the arguments of a timedelta: {error}"
        ) from error
    if passes < timedelta(0):
        raise InvalidDelay(f"time cannot go back; got {show(passes)}")
    return passes


@contextmanager
def frozen_queue(
    *,
    now: datetime | None = None,
    periodic: bool = False,
    leave_due: bool = False,
) -> Iterator[FrozenQueue]:
    """Keep all queues in memory. Time passes only by `FrozenQueue.advance`.

    Time starts at ``now``, an aware datetime, by default the present. With ``periodic``, schedules run as well. At the end
    of the block, no due job may be left, unless ``leave_due`` is true.

    Example::

        with frozen_queue() as queue:
            schedule(cancel_unpaid, timedelta(minutes=15), order.pk)
            (ran,) = queue.advance(minutes=15)
        assert ran.outcome == "succeeded"

    Raises:
        InvalidSettings: lupa is not installed.
        AssertionError: due jobs are left at the end.
    """
    queue = FrozenQueue(now, periodic=periodic)
    with mode.serving(InProcessServer.to(queue.server)), listening():
        queue.start()
        try:
            yield queue
            if not leave_due:
                queue.check_left()
        finally:
            queue.stop()
