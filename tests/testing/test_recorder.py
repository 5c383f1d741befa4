"""`captured` answers without Lua what our scripts answer: both are taken through the same calls and compared."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine

from django_delayq import Batch, Job, get_job, schedule_many
from django_delayq.testing import captured, frozen_queue
from tests.testing.samples import double, latest, mailed, once

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
#: Calls in a row, and rows.
LENGTH, ROWS = 12, 150


@contextmanager
def noted() -> Iterator[None]:
    with time_machine.travel(NOON, tick=False), captured():
        yield


@contextmanager
def frozen() -> Iterator[None]:
    with frozen_queue(now=NOON, leave_due=True):
        yield


class Row:
    """A random row of calls, the same for the same seed, and what each of them has shown."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._jobs: list[Job[Any]] = []
        self._batches: list[Batch] = []
        self.seen: list[Any] = []
        for _ in range(LENGTH):
            name = self._random.choice(sorted(CALLS))
            try:
                reply = CALLS[name](self)
            except Exception as error:
                reply = type(error).__name__
            self.seen.append((name, reply, *map(self._shown, self._jobs)))

    def _shown(self, job: Job[Any]) -> Any:
        """Return what a job shows, its handle and what is read of it anew; tokens are random."""
        state = job.refresh()
        found = get_job(job.id)
        start = None if job.start_time is None else job.start_time - NOON
        return (
            state,
            start,
            job.priority,
            job.attempts,
            job.unique,
            job.created,
            job.replaced,
            (found.state, found.args, found.kwargs, found.task, found.priority),
        )

    def _add(self, job: Job[Any]) -> bool:
        self._jobs.append(job)
        return job.created

    def delay(self) -> Any:
        seconds = self._random.choice([0, 1, 60, 900])
        return self._random.choice(
            [seconds, timedelta(seconds=seconds), NOON + timedelta(seconds=seconds)]
        )

    def number(self) -> int:
        return self._random.randrange(3)

    def job(self) -> Job[Any]:
        return self._random.choice(self._jobs)

    def plain(self) -> Any:
        return self._add(double.using(priority=self.number()).schedule(self.delay(), 1))

    def unique(self) -> Any:
        return self._add(once.schedule(self.delay(), self.number()))

    def duplicate(self) -> Any:
        task = latest.using(max_wait=self._random.choice([None, 100]))
        return self._add(
            task.schedule(self.delay(), self.number(), why=str(self.number()))
        )

    def many(self) -> Any:
        jobs = [
            double.prepare(self.delay(), 1).then(mailed.prepare(5, 2)),
            once.prepare(self.delay(), self.number()),
        ]
        return [self._add(job) for job in schedule_many(jobs)]

    def repeated(self) -> Any:
        job = double.prepare(self.delay(), 1)
        return [self._add(each) for each in schedule_many([job, job])]

    def batch(self) -> Any:
        batch = Batch(double.prepare(self.delay(), 0))
        self._batches.append(batch)
        jobs = batch.schedule([double.prepare(self.delay(), 1) for _ in range(2)])
        return [self._add(job) for job in [*jobs, batch.callback]]

    def left(self) -> Any:
        return [batch.left() for batch in self._batches]

    def cancel(self) -> Any:
        return self.job().cancel()

    def reschedule(self) -> Any:
        return self.job().reschedule(self.delay())

    def run_now(self) -> Any:
        return self.job().run_now()

    def retry(self) -> Any:
        return self.job().retry()

    def reprioritize(self) -> Any:
        return self.job().reprioritize(self.number())


CALLS: dict[str, Callable[[Row], Any]] = {
    name: call
    for name, call in vars(Row).items()
    if not name.startswith("_") and name not in ("delay", "number", "job")
}


@pytest.mark.parametrize("start", range(0, ROWS, 50))
def test_captured_shows_what_a_server_without_a_worker_would(start: int) -> None:
    for seed in range(start, start + 50):
        with noted():
            mine = Row(seed).seen
        with frozen():
            theirs = Row(seed).seen

        for here, there in zip(mine, theirs, strict=True):
            assert here == there, f"seed {seed}"
