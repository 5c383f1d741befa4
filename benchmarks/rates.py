"""How fast: `schedule`, `schedule_many` and a worker process, as ratios to B in the same run."""

import statistics
import time
from typing import Any

import redis

from benchmarks import bench

JOBS = 20_000
#: Jobs that are sent each in a call of its own.
ONE_BY_ONE = 3_000


def main(kind: str, rounds: int) -> None:
    """Print rates and ratios: medians over the rounds, B before and after each figure."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks

        rows: list[tuple[str, ...]] = []
        for task in (tasks.noop, tasks.noop_flat):
            queue = task.options.queue
            listed = "with Redisson's list" if queue == "default" else "without it"
            for name, measure, goal in (
                ("schedule()", schedule_one_by_one, 0.7),
                ("schedule_many()", schedule_many, 10.0),
                ("worker, 20,000 due no-ops", drain, 1.5),
            ):
                rates: list[float] = []
                ratios: list[float] = []
                for _ in range(rounds):
                    before = bench.baseline(client)
                    rates.append(measure(client, task))
                    after = bench.baseline(client)
                    ratios.append(rates[-1] / statistics.mean((before, after)))
                    bench.delete_queue(client, queue)
                rows.append(
                    (
                        f"{name}, {listed}",
                        bench.spread(rates),
                        bench.spread(ratios, "{:.2f}"),
                        f"{goal:g}",
                    )
                )
        bases = [bench.baseline(client) for _ in range(rounds)]
        print(f"B = {bench.spread(bases)} calls/s\n")
        bench.table(("what", "jobs/s, median (least – most)", "× B", "goal"), rows)


def schedule_one_by_one(client: redis.Redis, task: Any) -> float:
    """Return jobs a second, one round trip each."""

    def do() -> int:
        for i in range(ONE_BY_ONE):
            task.schedule(3600, i)
        return ONE_BY_ONE

    return bench.rate(do)


def schedule_many(client: redis.Redis, task: Any) -> float:
    """Return jobs a second, arguments checked and encoded in the time that counts."""
    from django_delayq import schedule_many

    return bench.rate(
        lambda: len(schedule_many(task.prepare(3600, i) for i in range(JOBS)))
    )


def drain(client: redis.Redis, task: Any, jobs: int = JOBS) -> float:
    """Return jobs a second of one worker process, from its first acknowledged job to the last."""
    from django_delayq import schedule_many

    states = bench.module("core.states", "delivery.states")
    keys = bench.module("core.keys", "delivery.keys").DeliveryKeys.of(
        task.options.queue
    )
    schedule_many(task.prepare(0, i) for i in range(jobs))
    done = states.State.SUCCEEDED
    first: tuple[float, int] | None = None
    with bench.working(
        "--burst", "--queue", task.options.queue, "--verbosity", "0"
    ) as worker:
        while True:
            has_ended = worker.poll() is not None
            count = int(client.hget(keys.counters, done) or 0)
            now = time.perf_counter()
            if count and first is None:
                first = now, count
            if count >= jobs:
                assert first is not None
                return (count - first[1]) / (now - first[0])
            if has_ended:
                raise SystemExit(
                    f"the worker ended with status {worker.returncode} after {count:,} of {jobs:,} jobs"
                )
            time.sleep(0.002)
