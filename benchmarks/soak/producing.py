"""The producer of a soak: schedules jobs at a steady rate, cancels and moves some, until its standard input ends.

``python -m benchmarks.soak.producing RATE LONGEST_S``; rate 0 is as fast as it goes.
"""

import heapq
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import django

from benchmarks.soak.kinds import KINDS, NUMBERS, queue_names
from benchmarks.soak.ledger import Event, Recorder

#: Between two looks at how many jobs there should be by now.
TURN_S = 0.02
#: Jobs of a turn at most: a producer that was held up catches up in steps.
TURN_JOBS = 200
#: Tasks of which a turn sends all jobs together.
TOGETHER = ("do_nothing", "store_document")
TEXT = "x" * 4_000
#: How much later a job becomes due that is moved, and one that waits for its quota.
LATER_S = 2.0
UNIQUE_ACCOUNTS, LIMITED_ACCOUNTS = 50, 1_000


class Producer:
    """Schedules jobs, and does to some of them what has to be done later."""

    def __init__(self, recorder: Recorder, queues: list[str], longest_s: float) -> None:
        self._recorder = recorder
        self._queues = queues
        self._longest_s = longest_s
        self._random = random.Random(1)
        self._numbers = count(1)
        self._kinds = [kind for kind in KINDS if kind.share]
        self._shares = [kind.share for kind in self._kinds]
        #: When to do it, by the clock of the epoch; a number that makes entries differ; what to do.
        self._plans: list[tuple[float, int, Callable[[], None]]] = []

    def turn(self, jobs: int) -> None:
        """Schedule so many jobs, and do what has to be done by now."""
        from django_delayq import schedule_many

        together: list[tuple[int, str, Any]] = []
        for kind in self._random.choices(self._kinds, self._shares, k=jobs):
            number, due_ms = next(self._numbers), self._due_ms(kind.task)
            if kind.task in TOGETHER:
                args = (TEXT,) if kind.task == "store_document" else ()
                job = self._task(kind.task, number).prepare(
                    _moment(due_ms), number, *args
                )
                together.append((number, kind.task, job))
            else:
                getattr(self, f"_{kind.task}", self._plain)(kind.task, number, due_ms)
        if together:
            schedule_many(job for *_, job in together)
            for number, task, job in together:
                self._stored(number, task, job)
        while self._plans and self._plans[0][0] <= time.time():
            heapq.heappop(self._plans)[2]()

    def _due_ms(self, task: str) -> float:
        rand, longest_s = self._random, self._longest_s
        if task in ("remind", "publish"):
            # There is time to change these before they are due.
            delay_s = rand.uniform(longest_s / 3, longest_s)
        else:
            most_s = rand.choice((0.0, longest_s / 300, longest_s / 10, longest_s))
            delay_s = rand.uniform(0, most_s)
        return float(round((time.time() + delay_s) * 1000))

    def _task(self, name: str, number: int) -> Any:
        from benchmarks.soak import tasks

        queue = self._queues[number % len(self._queues)]
        return getattr(tasks, name).using(queue=queue)

    def _send(self, task: str, due_ms: float, number: int, *args: Any) -> Any:
        job = self._task(task, number).schedule(_moment(due_ms), number, *args)
        if job.created:
            self._stored(number, task, job)
        return job

    def _stored(self, number: int, task: str, job: Any) -> None:
        # Later than what was asked for only if that had passed when the server stored the job.
        self._recorder.record(Event.STORED, number, NUMBERS[task], job.start_time_ms)

    def _plain(self, task: str, number: int, due_ms: float) -> None:
        self._send(task, due_ms, number)

    def _sync_account(self, task: str, number: int, due_ms: float) -> None:
        # Many of these find the key taken.
        self._send(task, due_ms, number, self._random.randrange(UNIQUE_ACCOUNTS))

    def _charge_account(self, task: str, number: int, due_ms: float) -> None:
        self._send(task, due_ms, number, self._random.randrange(LIMITED_ACCOUNTS))

    def _wait_for_quota(self, task: str, number: int, due_ms: float) -> None:
        self._send(task, due_ms, number, due_ms + LATER_S * 1000)

    def _remind(self, task: str, number: int, due_ms: float) -> None:
        job = self._send(task, due_ms, number)

        def cancel() -> None:
            if job.cancel():
                at_ms = time.time() * 1000
                self._recorder.record(Event.CANCELLED, number, NUMBERS[task], at_ms)

        self._plan(due_ms, number, cancel)

    def _publish(self, task: str, number: int, due_ms: float) -> None:
        job = self._send(task, due_ms, number)
        later_ms = due_ms + LATER_S * 1000

        def move() -> None:
            if job.reschedule(_moment(later_ms)):
                self._recorder.record(Event.MOVED, number, NUMBERS[task], later_ms)

        self._plan(due_ms, number, move)

    def _plan(self, due_ms: float, number: int, do: Callable[[], None]) -> None:
        now = time.time()
        at = now + max(0.0, due_ms / 1000 - now) / 2
        heapq.heappush(self._plans, (at, number, do))

    def _take_order(self, task: str, number: int, due_ms: float) -> None:
        from django_delayq import schedule_many

        first = self._task(task, number).prepare(_moment(due_ms), number)
        after = next(self._numbers)
        follower = self._task("confirm_order", number).prepare(0, after)
        schedule_many([first.then(follower)])
        self._stored(number, task, first)
        # When it is due is known once the first has ended.
        self._recorder.record(Event.STORED, after, NUMBERS["confirm_order"], 0.0)


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def main() -> None:
    rate, longest_s = float(sys.argv[1]), float(sys.argv[2])
    # Ctrl-C reaches the whole group; the soak says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    django.setup()
    recorder = Recorder(Path(os.environ["DELAYQ_SOAK_LEDGER"]), "producer")
    producer = Producer(recorder, queue_names(), longest_s)
    began, made = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], TURN_S if rate else 0)[0]:
        missing = round((time.monotonic() - began) * rate) - made
        jobs = min(missing, TURN_JOBS) if rate else TURN_JOBS
        producer.turn(jobs)
        made += jobs


if __name__ == "__main__":
    main()
