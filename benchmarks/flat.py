"""What a million pending jobs change: the cost of each operation, the longest call, the worker's memory."""

import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import redis

from benchmarks import bench

FEW, MANY = 1_000, 1_000_000
CALLS = 400
#: The longest calls seen, µs and what: reading SLOWLOG call by call clears it.
SLOWEST: list[tuple[float, str]] = []


def main(kind: str) -> None:
    """Print the cost of each operation with few and many jobs pending, and the slowest script."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks

        few = _measure(client, tasks.noop_flat, FEW)
        bench.delete_queue(client, "flat")
        client.slowlog_reset()
        SLOWEST.clear()
        many = _measure(client, tasks.noop_flat, MANY)
        rows = [
            (
                name,
                f"{few[name][0]:.1f}",
                f"{many[name][0]:.1f}",
                f"{many[name][0] / few[name][0]:.2f}",
                f"{few[name][1]:.0f}",
                f"{many[name][1]:.0f}",
            )
            for name in few
        ]
        bench.table(
            (
                "call",
                "server µs, 1,000",
                "server µs, 1,000,000",
                "ratio",
                "round trip µs, 1,000",
                "1,000,000",
            ),
            rows,
        )
        slow_us, what = max(SLOWEST)
        print(
            f"slowest call with 1,000,000 pending: {slow_us / 1000:.1f} ms ({what}); goal: 5 ms\n"
        )
        idle, loaded = _worker_memory(client, "flat")
        print(
            f"worker that holds nothing but these: {loaded:.1f} MiB; with nothing pending: {idle:.1f} MiB"
        )


def _measure(client: redis.Redis, task, count: int) -> dict[str, tuple[float, float]]:
    """Return for each operation the median µs of the server and of the round trip."""
    from django_delayq import schedule_many
    from django_delayq.delivery import operations
    from django_delayq.wire.call import run

    keys = task_keys(task)
    print(f"scheduling {count:,} jobs …", flush=True)
    sample: list[Any] = []
    for start in range(0, count, 10_000):
        jobs = schedule_many(
            task.prepare(random.randint(3_600, 86_400), i)
            for i in range(start, min(start + 10_000, count))
        )
        sample += random.sample(
            jobs, min(len(jobs), 2 * CALLS * len(jobs) // count + 1)
        )
    random.shuffle(sample)
    moved, cancelled = cycle(sample[:CALLS]), iter(sample[CALLS:])
    found: dict[str, tuple[float, float]] = {}
    found["schedule"] = _cost(
        client, lambda: task.schedule(random.randint(3_600, 86_400), 0)
    )
    found["reschedule"] = _cost(
        client, lambda: next(moved).reschedule(random.randint(3_600, 86_400))
    )
    found["cancel"] = _cost(client, lambda: next(cancelled).cancel())
    found["get_job"] = _cost(client, lambda: next(moved).refresh())
    for _ in range(CALLS):
        next(moved).reschedule(0)
    found["claim one"] = _cost(
        client,
        lambda: run(
            client,
            operations.claim(
                keys,
                owner=b"bench---",
                request=os.urandom(8),
                limit=1,
                lease_ms=600_000,
            ),
        ),
    )
    return found


def task_keys(task):
    """Return the keys of a task's queue."""
    from django_delayq.delivery.keys import DeliveryKeys

    return DeliveryKeys.of(task.options.queue)


def _cost(client: redis.Redis, do: Callable[[], object]) -> tuple[float, float]:
    """Return the median µs of the server's own time, as SLOWLOG has it, and of the round trip."""
    times: list[float] = []
    worst = bench.slowest_us(client)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    for _ in range(CALLS):
        start = time.perf_counter()
        do()
        times.append((time.perf_counter() - start) * 1e6)
    calls = [
        entry["duration"]
        for entry in client.slowlog_get(1024)
        if entry["command"].startswith(b"EVALSHA")
    ]
    client.config_set("slowlog-log-slower-than", 1000)
    SLOWEST.append(max(worst, (max(calls), "one of the calls measured")))
    return statistics.median(calls), statistics.median(times)


def _worker_memory(client: redis.Redis, queue: str) -> tuple[float, float]:
    loaded = _child_memory(queue)
    bench.delete_queue(client, queue)
    return _child_memory(queue), loaded


def _child_memory(queue: str) -> float:
    """Return the MiB that a worker process has of its own after some seconds."""
    with bench.working("--queue", queue, "--verbosity", "0") as worker:
        time.sleep(5)
        with open(f"/proc/{worker.pid}/task/{worker.pid}/children") as file:
            child = file.read().split()[0]
        with open(f"/proc/{child}/status") as file:
            return next(
                int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS")
            )
