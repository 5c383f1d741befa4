"""Where the model runs: a worker in steps, on the server in memory, or on a real one whose clock the stage sets.

`frozen_queue` ends each attempt where it begins. Here an attempt lasts, so that jobs run beside each other; its worker
can be killed meanwhile, its ends can be told twice, and its code can be replaced.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from redis.client import Redis
from redis.exceptions import ConnectionError

from django_delayq import conf
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.core import worker_code
from django_delayq.core.forward_calls import Forward
from django_delayq.management.backends import listening
from django_delayq.testing import mode
from django_delayq.testing.frozen import FrozenQueue
from django_delayq.testing.local_connection import InProcessServer
from django_delayq.transport.line import Line, UnderWay
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.server import Server as Address
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.queue_state import QueueState
from django_delayq.worker.settle import Settlement, renew
from tests.faults.clock import ServerClock
from tests.polling import wait_until
from tests.servers import Server

#: How often leases are renewed, schedules and limits declared, and one step of the upkeep done.
RENEWED_US = 10_000_000
#: In the future of every machine, as faketime reads the fraction of a negative offset wrongly.
BEGIN = datetime(2096, 3, 2, tzinfo=UTC)


@dataclass
class Running:
    """An attempt whose function has been called, and which goes on until its moment."""

    attempt: Attempt
    until_us: int
    #: Whether limits have to be heeded when it ends.
    has_slots: bool


class _Lossy(Line):
    """A line to the server that loses the replies to some calls, which the server has carried out."""

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage.client)
        self._stage = stage

    def ask(self, call: Any) -> UnderWay[Any]:
        under_way: UnderWay[Any] = UnderWay(self, Command(()))
        reply = run(self.client, call)
        is_lost = self._stage.chance.random() < self._stage.losses
        under_way.tell(ConnectionError("the reply is lost") if is_lost else reply)
        return under_way


class Stage(FrozenQueue):
    """The server in memory, with attempts that last."""

    def __init__(self) -> None:
        super().__init__(BEGIN, periodic=True)
        self.running: list[Running] = []
        #: For how long the function that was called last goes on, us.
        self.lasts_us = 0
        #: What is called with each attempt that has ended as the server knows it, and when that began, epoch ms.
        self.on_end: Callable[[Attempt, Verdict, float], None] = lambda *told: None
        #: What is called with what a claim has ended.
        self.on_claim: Callable[[str, Any], None] = lambda queue, reply: None
        #: Called before and after each claim. `after_claim` gets what `before_claim` has returned.
        self.before_claim: Callable[[str], Any] = lambda queue: None
        self.after_claim: Callable[[str, Any, Any], None] = lambda *told: None
        #: How likely the reply to a claim, or to an end, is lost.
        self.losses = 0.0
        self.chance = random.Random(0)
        self._renew_us = self._now_us + RENEWED_US
        self._turns = 0
        #: Queues whose last claim found nothing, while nobody has changed them: no job comes before their next moment.
        self._quiet: set[str] = set()
        #: Queues whose schedules were read since somebody might have changed them.
        self._read: set[str] = set()

    @property
    def client(self) -> Redis:
        return self._client

    # In steps.

    def advance(self, *passes: Any, **units: Any) -> list[Any]:
        self._quiet.clear()
        self._read.clear()
        return super().advance(*passes, **units)

    def _take_turns(self, state: QueueState) -> None:
        name = state.settings.name
        is_due = any(part.is_due(monotonic_ms(), self._now_us) for part in state.parts)
        if is_due or name not in self._read:
            self._read.add(name)
            self._quiet.discard(name)
            super()._take_turns(state)

    def _run_one(self, state: QueueState) -> Any:
        name = state.settings.name
        if name in self._quiet and self._events[name] > self._now_us:
            return None
        ran = super()._run_one(state)
        if ran is None:
            self._quiet.add(name)
        return ran

    def _claim(self, state: QueueState) -> Any:
        self.lasts_us = 0
        name = state.settings.name
        due = self.before_claim(name)
        reply = super()._claim(state)
        self.after_claim(name, due, reply.jobs)
        self.on_claim(name, reply)
        return reply

    def _settle(self, attempt: Attempt, *, has_slots: bool) -> None:
        if self.lasts_us and attempt.started_ms:
            until_us = self._now_us + self.lasts_us
            self.running.append(Running(attempt, until_us, has_slots))
        else:
            self._end(attempt, has_slots)

    def _end(self, attempt: Attempt, has_slots: bool) -> None:
        """Tell the server of an end, as a worker does whose replies are lost now and then."""
        self._quiet.discard(attempt.queue.name)
        begin_ms = self.server_ms()
        line = _Lossy(self)
        reports = [report(line) for report in self._reports]
        settlement = Settlement(line, self._forward, reports=reports)
        if has_slots:
            settlement.limited.add(attempt.queue.name)
        settlement.ended.append(attempt)
        while settlement:
            try:
                _, failure = settlement.settle(force=True)
            except ConnectionError:
                continue
            assert failure is None, failure
        for report in reports:
            report.tell()
            report.learn()
        if not attempt.is_lost:
            final = attempt.verdict
            assert final is not None
            self.on_end(attempt, final, begin_ms)

    def _forward(
        self,
        source: conf.QueueSettings,
        queue: str,
        forwards: Sequence[Forward],
        _: float,
    ) -> None:
        self._quiet.discard(queue)
        super()._forward(source, queue, forwards, _)

    def _run_due(self) -> list[Any]:
        if self._now_us >= self._renew_us:
            self._renew()
        for one in [each for each in self.running if each.until_us <= self._now_us]:
            self.running.remove(one)
            self._end(one.attempt, one.has_slots)
        return super()._run_due()

    def _renew(self) -> None:
        self._renew_us = self._now_us + RENEWED_US
        lease_ms = conf.get_settings().worker.lease_ms
        attempts = [each.attempt for each in self.running]
        lost, refused = renew(self._client, attempts, lease_ms=lease_ms)
        assert not refused, refused
        self.running = [each for each in self.running if each.attempt not in lost]
        self._turns += 1
        for state in self._states() if self._turns % 2 else ():
            self._quiet.discard(state.settings.name)
            state.upkeep.turn(0.0)
            state.upkeep.ask_whether_latest()

    def _next_us(self) -> float:
        ends = [each.until_us for each in self.running]
        return min(super()._next_us(), self._renew_us, *ends)

    # Moves.

    def deploy(self) -> None:
        """Go on as a new process whose code has just been loaded; what ran is given up."""
        self.kill()
        worker_code.LOADED_MS = boottime_ms()

    def kill(self) -> list[Attempt]:
        """End the worker without a word, and start another."""
        killed = [each.attempt for each in self.running]
        self.running.clear()
        self._queues.clear()
        self._events.clear()
        return killed

    def server_ms(self) -> float:
        return self._now_us / 1000


class LiveStage(Stage):
    """A real server, whose clock is the stage's and goes on by itself between two steps."""

    def __init__(self, kind: str, directory: Path) -> None:
        super().__init__()
        self._clock = ServerClock(directory / "clock")
        self._epoch_s = time.time() - time.monotonic()
        self.live = Server(
            kind,
            {"appendonly": "yes", "appendfsync": "always"},
            environment=self._clock.environment,
        )
        self._set_clock(self._now_us)

    @cached_property
    def live_client(self) -> Redis:
        return self.live.client()

    def _real_us(self) -> int:
        return int((self._epoch_s + time.monotonic()) * 1_000_000)

    def _set_clock(self, now_us: int) -> None:
        self._offset_us = now_us - self._real_us()
        new = self._clock.path.with_suffix(".new")
        new.write_text(f"{self._offset_us / 1_000_000:+f}")
        new.replace(self._clock.path)
        if self.live.is_running:
            # The server reads the file when it asks for the time, and may go by the one before once more.
            self.live_client.time()
            wait_until(
                lambda: abs(self._told_us() - self._due_us()) < 50_000,
                description="the server goes by the new clock",
            )

    def _due_us(self) -> int:
        """What the server's clock is to say now."""
        return self._real_us() + self._offset_us

    def _move_to(self, now_us: float) -> None:
        super()._move_to(now_us)
        # A server that is ahead by what our own steps took is not set back.
        if self._due_us() < self._now_us + 2_000:
            self._set_clock(self._now_us + 2_000)

    def _has(self, key: str) -> bool:
        return bool(self._client.exists(key))

    def _told_us(self) -> int:
        seconds, micros = self.live_client.time()
        return int(seconds * 1_000_000 + micros)

    def server_ms(self) -> float:
        return self._due_us() / 1000

    def _claim(self, state: QueueState) -> Any:
        reply = super()._claim(state)
        # The next event is that long after the server's time, which has gone on by itself.
        super()._move_to(reply.now_us)
        return reply

    def step(self, seconds: int) -> None:
        """Step the server's clock, forward or back."""
        now_us = self._due_us() + seconds * 1_000_000
        for each in self.running:
            each.until_us += seconds * 1_000_000
        self._renew_us = min(self._renew_us, now_us + RENEWED_US)
        self._now_us = now_us
        if self._traveller is not None:
            self._traveller.move_to(now_us / 1_000_000)
        self._set_clock(now_us)
        self._events.clear()
        for state in self._queues.values():
            for part in state.parts:
                if part.wakes:
                    part.due_us = 0.0

    def restart(self) -> None:
        """Kill the server, and start it again with what is on its disk."""
        self.live.kill()
        self.live.start()


@contextmanager
def staged(stage: Stage) -> Iterator[Stage]:
    """Have jobs go to the stage's server within the block."""
    loaded_ms = worker_code.LOADED_MS
    if isinstance(stage, LiveStage):
        stage.live.start()
        address = Address.at(stage.live.socket_url)
    else:
        address = InProcessServer.to(stage.server)
    try:
        with mode.serving(address), listening():
            stage.start()
            try:
                yield stage
            finally:
                stage.stop()
    finally:
        worker_code.LOADED_MS = loaded_ms
        if isinstance(stage, LiveStage):
            stage.live.stop()
