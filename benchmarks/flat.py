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


def main(kind: str, pending: int = MANY) -> None:
    """Print the cost of each operation with few and many jobs pending, and the slowest script."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks

        few = _Operations(client, tasks.noop_flat.using(queue="few"), FEW)
        many = _Operations(client, tasks.noop_flat, pending)
        rows = []
        for name in ("schedule", "reschedule", "cancel", "get_job", "claim one"):
            one, other = _costs(
                client, getattr(few, _method(name)), getattr(many, _method(name))
            )
            rows.append(
                (
                    name,
                    f"{one[0]:.0f}",
                    f"{other[0]:.0f}",
                    f"{other[0] / one[0]:.2f}",
                    f"{one[1]:.0f}",
                    f"{other[1]:.0f}",
                    f"{other[1] / one[1]:.2f}",
                )
            )
        bench.table(
            (
                "call",
                "server µs, 1,000",
                f"{pending:,}",
                "ratio",
                "round trip µs, 1,000",
                f"{pending:,}",
                "ratio",
            ),
            rows,
        )
        for what, (slow_us, command) in (
            ("filling", many.slowest),
            ("the calls above", max(SLOWEST)),
        ):
            print(
                f"longest call, {what}: {slow_us / 1000:.1f} ms ({command}); goal: 5 ms"
            )
        idle, loaded = _worker_memory(client, "flat")
        print(
            f"worker that holds nothing but these: {loaded:.1f} MiB; with nothing pending: {idle:.1f} MiB"
        )


def _method(name: str) -> str:
    return name.replace(" ", "_")


class _Operations:
    """A queue with so many jobs pending, and calls to be measured on it."""

    def __init__(self, client: redis.Redis, task: Any, count: int) -> None:
        from django_delayq import schedule_many

        self._client, self._task = client, task
        print(f"scheduling {count:,} jobs …", flush=True)
        client.slowlog_reset()
        sample: list[Any] = []
        for start in range(0, count, 10_000):
            jobs = schedule_many(
                task.prepare(_later(), i)
                for i in range(start, min(start + 10_000, count))
            )
            sample += random.sample(
                jobs, min(len(jobs), 2 * CALLS * len(jobs) // count + 1)
            )
        self.slowest = bench.slowest_us(client)
        random.shuffle(sample)
        self._moved, self._cancelled = cycle(sample[:CALLS]), iter(sample[CALLS:])
        self._due = iter(sample[:CALLS])

    def schedule(self) -> object:
        return self._task.schedule(_later(), 0)

    def reschedule(self) -> object:
        return next(self._moved).reschedule(_later())

    def cancel(self) -> object:
        return next(self._cancelled).cancel()

    def get_job(self) -> object:
        return next(self._moved).refresh()

    def claim_one(self) -> object:
        from django_delayq.core import claim as claim_calls
        from django_delayq.core.keys import DeliveryKeys
        from django_delayq.transport.run import run

        call = claim_calls.claim(
            DeliveryKeys.of(self._task.options.queue),
            owner=b"bench---",
            request=os.urandom(8),
            limit=1,
            lease_ms=600_000,
        )
        return run(self._client, call)

    def make_one_due(self) -> None:
        next(self._due).reschedule(0)


def _later() -> int:
    return random.randint(3_600, 86_400)


def _costs(
    client: redis.Redis, *calls: Callable[[], object]
) -> list[tuple[float, float]]:
    """Return for each call the median µs of the server's own time and of the round trip, measured in turns."""
    times: list[list[float]] = [[] for _ in calls]
    served: list[list[float]] = [[] for _ in calls]
    client.config_set("slowlog-log-slower-than", 0)
    for _ in range(CALLS):
        for i, call in enumerate(calls):
            if call.__name__ == "claim_one":
                call.__self__.make_one_due()  # type: ignore[attr-defined]
            client.slowlog_reset()
            start = time.perf_counter()
            call()
            times[i].append((time.perf_counter() - start) * 1e6)
            entries = client.slowlog_get(8)
            served[i].append(
                max(e["duration"] for e in entries if e["command"].startswith(b"EVAL"))
            )
    client.config_set("slowlog-log-slower-than", 1000)
    SLOWEST.append((max(map(max, served)), calls[-1].__name__))
    return [
        (statistics.median(own), statistics.median(whole))
        for own, whole in zip(served, times, strict=True)
    ]


def _worker_memory(client: redis.Redis, queue: str) -> tuple[float, float]:
    loaded = _child_memory(queue)
    bench.delete_queue(client, queue)
    return _child_memory(queue), loaded


def _child_memory(queue: str) -> float:
    """Return the MiB that a worker process has of its own after some seconds."""
    with bench.working("--queue", queue, "--verbosity", "0") as worker:
        children: list[str] = []
        while not children:
            assert worker.poll() is None, "the worker has ended"
            time.sleep(0.1)
            with open(f"/proc/{worker.pid}/task/{worker.pid}/children") as file:
                children = file.read().split()
        time.sleep(5)
        child = children[0]
        with open(f"/proc/{child}/status") as file:
            return next(
                int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS")
            )
