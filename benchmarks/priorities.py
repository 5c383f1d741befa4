"""``python -m benchmarks.priorities``: how soon does an urgent job start behind 100,000 others, and what do priorities cost?

The urgent job is scheduled while a worker of one process works on no-ops of a lower priority that are all due. The cost
is that of a drain: the same no-ops with and without priorities, in turns.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks import bench, rates

#: Bars: ms until the urgent job starts; the rate with priorities over the rate without.
SOON_MS = 50.0
SHARE = 0.5
URGENT = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="a kind of server")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        bench.serving(options.server) as server,
    ):
        marks = Path(folder) / "marks"
        os.environ["DELAYQ_BENCH_MARKS"] = str(marks)
        client = server.client()
        _urgent(client, marks, options.jobs)
        _drain(client, options.rounds)


def _urgent(client: redis.Redis, marks: Path, jobs: int) -> None:
    from benchmarks import tasks
    from django_delayq import schedule_many

    queue = tasks.noop_flat.options.queue
    low = tasks.noop_flat.using(priority=-5)
    schedule_many(low.prepare(0, i) for i in range(jobs))
    delays_ms: list[float] = []
    with bench.working("--queue", queue, "--processes", "1") as worker:
        for number in range(URGENT):
            while _left(client, queue) > jobs * (1 - (number + 1) / (URGENT + 2)):
                if worker.poll() is not None:
                    raise SystemExit(f"the worker ended: {worker.returncode}")
                time.sleep(0.001)
            delays_ms.append(_start_of_urgent(marks, number))
        left = _left(client, queue)
    print(
        f"An urgent job starts {bench.spread(delays_ms, '{:.1f}')} ms after it was scheduled (bar: {SOON_MS:g}),"
        f" {URGENT} times, while {jobs:,} others are due; {left:,} were left after the last.\n"
    )
    bench.delete_queue(client, queue)


def _start_of_urgent(marks: Path, number: int) -> float:
    from benchmarks import tasks

    marks.unlink(missing_ok=True)
    tasks.stamp.using(priority=5).schedule(0, number)
    sent = time.monotonic()
    while not (marks.exists() and marks.stat().st_size):
        time.sleep(0.0005)
    return (float(marks.read_text()) - sent) * 1000


def _left(client: redis.Redis, queue: str) -> int:
    from django_delayq.wire.queue_keys import QueueKeys

    return int(client.zcard(QueueKeys.of(queue).timeout_set))


def _drain(client: redis.Redis, rounds: int) -> None:
    from benchmarks import tasks

    queue = tasks.noop_flat.options.queue
    plain: list[float] = []
    ranked: list[float] = []
    mixed: list[float] = []
    ways: list[tuple[list[float], Any]] = [
        (plain, tasks.noop_flat),
        (ranked, tasks.noop_flat.using(priority=3)),
        (mixed, _Mixed(tasks.noop_flat)),
    ]
    for number in range(rounds):
        for found, task in ways if number % 2 else reversed(ways):
            found.append(rates.drain(client, task))
            bench.delete_queue(client, queue)
    rows = [
        (name, bench.spread(found), _ratio(found, plain))
        for name, found in (
            ("without priorities", plain),
            ("all of one priority", ranked),
            ("of ten priorities", mixed),
        )
    ]
    bench.table(("20,000 due", "jobs/s", f"ratio (bar: {SHARE:g})"), rows)


class _Mixed:
    """A task whose jobs have ten priorities in turn."""

    def __init__(self, task: Any) -> None:
        self.options = task.options
        self._tasks = [task.using(priority=n) for n in range(-5, 5)]

    def prepare(self, delay: float, number: int) -> Any:
        return self._tasks[number % len(self._tasks)].prepare(delay, number)


def _ratio(ones: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return f"{statistics.median(ratios):.2f}"


if __name__ == "__main__":
    main()
