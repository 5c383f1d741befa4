"""``python -m benchmarks.listed``: what does Redisson's insertion list cost where it is kept?

So many far-future jobs are pending. 10,000 more are due at one instant, in three shapes: in the order in which they
were offered, in random order, and scattered among the far-future ones. For each: jobs a second of one worker process
from its first acknowledged job to the last, the server's CPU a job, and the longest call beside its bound, 5 ms and
two scans of the list. Then what a cancel and a reschedule cost at the head, in the middle and at the tail, and many at
once.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from benchmarks import bench
from tests.servers import available_kinds

DUE = 10_000
#: Cancels and reschedules at each place.
CALLS = 15
#: Jobs of one call to `remove_all`, `retain_all` and the like.
MANY = 1_000
#: Elements that `retain_all` keeps.
KEPT = 100
#: Jobs that one `schedule_many` sends.
PART = 10_000


def main() -> None:
    """Print a table for each number of pending jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument(
        "--pending", type=int, nargs="*", default=[0, 100_000, 1_000_000]
    )
    parser.add_argument("--due", type=int, default=DUE)
    parser.add_argument("--only", choices=("drains", "calls"))
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        for pending in options.pending:
            run = _Run(server.client(), pending, options.due)
            run.fill()
            if options.only != "calls":
                run.drains()
            if options.only != "drains" and pending:
                run.calls()
                run.many()
            run.clear()


class _Run:
    """One queue with so many far-future jobs in its list."""

    def __init__(self, client: redis.Redis, pending: int, due: int) -> None:
        from benchmarks import tasks
        from django_delayq.core.keys import DeliveryKeys

        self._client, self._pending, self._due = client, pending, due
        self._task: Any = tasks.noop_listed
        self._queue: str = self._task.options.queue
        self._keys = DeliveryKeys.of(self._queue)
        # Some of those that are pending, in the order of the list.
        self._handles: list[Any] = []

    def fill(self) -> None:
        """Schedule the pending jobs, and keep some of them, evenly spread, with the outermost."""
        from django_delayq import schedule_many

        print(f"\n## {self._pending:,} pending\n", flush=True)
        every = max(1, (self._pending + self._due) // (2 * self._due))
        count = self._pending + self._due if self._pending else 0
        for start in range(0, count, PART):
            jobs = schedule_many(
                self._task.prepare(_later(), i)
                for i in range(start, min(start + PART, count))
            )
            self._handles += jobs[::every]

    def drains(self) -> None:
        """Drain what is due, in each shape."""
        rows = [
            (name, *self._drain(make))
            for name, make in (
                ("in order", self._in_order),
                ("in reverse order", self._reversed),
                ("in random order", self._shuffled),
                ("scattered among the others", self._scattered),
            )
            if self._pending or make != self._scattered
        ]
        bench.table(
            (
                "due",
                "jobs/s",
                "server's CPU a job, µs",
                "longest call, ms",
                "one scan, ms",
            ),
            rows,
        )

    def _in_order(self) -> None:
        self._offer([-1.0] * self._due)

    def _reversed(self) -> None:
        self._offer([-number / 1000 for number in range(self._due)])

    def _shuffled(self) -> None:
        times = [-number / 1000 for number in range(self._due)]
        random.shuffle(times)
        self._offer(times)

    def _offer(self, times: Sequence[float]) -> None:
        from datetime import UTC, datetime, timedelta

        from django_delayq import schedule_many

        # The server stores past times as now, so the jobs are due in the future, and the benchmark waits for them.
        start = datetime.now(UTC) + timedelta(seconds=max(times) - min(times) + 2)
        schedule_many(
            self._task.prepare(start + timedelta(seconds=when - max(times)), i)
            for i, when in enumerate(times)
        )
        _sleep_until(start)

    def _scattered(self) -> None:
        from django_delayq.core import change as change_calls
        from django_delayq.transport.several import run_all

        moved = random.sample(self._handles, min(self._due, len(self._handles)))
        for start in range(0, len(moved), 500):
            run_all(
                self._client,
                [
                    change_calls.reschedule(self._keys, job.token, "+0")
                    for job in moved[start : start + 500]
                ],
            )
        gone = {job.token for job in moved}
        self._handles = [job for job in self._handles if job.token not in gone]

    def _drain(self, make: Callable[[], None]) -> tuple[str, ...]:
        make()
        done = int(self._client.hget(self._keys.counters, "succeeded") or 0)
        scan_ms = self._scan_ms()
        self._client.slowlog_reset()
        cpu_s, first, start = self._cpu_s(), 0, 0.0
        with bench.working(
            "--burst", "--queue", self._queue, "--verbosity", "0"
        ) as worker:
            while True:
                has_ended = worker.poll() is not None
                count = int(self._client.hget(self._keys.counters, "succeeded") or 0)
                now = time.perf_counter()
                if count > done and not first:
                    first, start = count - done, now
                if count - done >= self._due:
                    break
                if has_ended:
                    raise SystemExit(f"the worker ended after {count - done:,} jobs")
                time.sleep(0.002)
        rate = (self._due - first) / (now - start)
        cpu_us = (self._cpu_s() - cpu_s) / self._due * 1e6
        slow_us, _ = bench.slowest_us(self._client)
        return (
            f"{rate:,.0f}",
            f"{cpu_us:,.0f}",
            f"{slow_us / 1000:.1f}",
            f"{scan_ms:.1f}",
        )

    def _scan_ms(self) -> float:
        """Return what one scan of the list takes, ms: the fastest of some."""
        best = float("inf")
        for _ in range(3):
            self._client.slowlog_reset()
            start = time.perf_counter()
            self._client.lrem(self._keys.queue.delay_queue, 1, "no frame")  # type: ignore[arg-type]
            best = min(best, (time.perf_counter() - start) * 1000)
        return best

    def _cpu_s(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def calls(self) -> None:
        """Cancel and reschedule one by one at three places, and many at once."""
        middle = len(self._handles) // 2
        scan_ms = self._scan_ms()
        rows = []
        for place, at in (
            ("head", 0),
            ("middle", middle - CALLS),
            ("tail", len(self._handles) - 2 * CALLS),
        ):
            jobs = self._handles[at : at + CALLS]
            moved = [
                self._served_ms(lambda job=job: job.reschedule(_later()))
                for job in jobs
            ]
            cancelled = [self._served_ms(job.cancel) for job in jobs]
            rows.append(
                (
                    place,
                    f"{statistics.median(moved):.2f}",
                    f"{statistics.median(cancelled):.2f}",
                    f"{max(cancelled):.2f}",
                    f"{scan_ms:.2f}",
                )
            )
        bench.table(
            (
                "place in the list",
                "reschedule, ms",
                "cancel, ms",
                "longest",
                "one scan",
            ),
            rows,
        )

    def _served_ms(self, call: Callable[[], object]) -> float:
        """Return the server's own time of the call's script, ms."""
        self._client.config_set("slowlog-log-slower-than", 0)
        self._client.slowlog_reset()
        assert call()
        entries = self._client.slowlog_get(8)
        self._client.config_set("slowlog-log-slower-than", 1000)
        return (
            max(e["duration"] for e in entries if e["command"].startswith(b"EVAL"))
            / 1000
        )

    def many(self) -> None:
        """Take out many at once: by their ids, and by their payloads as a Java client would."""
        from django_delayq.queues.delayed_queue import DelayedQueue

        sample = random.sample(self._handles[CALLS:-CALLS], 3 * MANY)
        jobs = sample[:MANY]
        removed = self._payloads(sample[MANY : 2 * MANY])
        retained = self._payloads(sample[2 * MANY : 2 * MANY + KEPT])
        scan_ms = self._scan_ms()
        with DelayedQueue(self._queue, codec="ByteArrayCodec") as queue:
            rows = [
                self._timed("cancel_many", MANY, lambda: self._cancel_many(jobs)),
                self._timed(
                    "remove_all",
                    MANY,
                    lambda: queue.remove_all(removed),
                ),
                self._timed(
                    f"retain_all of {KEPT}",
                    len(queue) - MANY,
                    lambda: queue.retain_all(retained),
                ),
            ]
        bench.table(
            ("call", "elements", "s", "longest call, ms", "one scan, ms"),
            [(*row, f"{scan_ms:.1f}") for row in rows],
        )

    def _timed(
        self, name: str, count: int, call: Callable[[], object]
    ) -> tuple[str, ...]:
        self._client.slowlog_reset()
        start = time.perf_counter()
        assert call()
        took_s = time.perf_counter() - start
        slow_us, _ = bench.slowest_us(self._client)
        return name, f"{count:,}", f"{took_s:.2f}", f"{slow_us / 1000:.1f}"

    def _cancel_many(self, jobs: Sequence[Any]) -> bool:
        from django_delayq.core import change as change_calls
        from django_delayq.core import states
        from django_delayq.transport.run import run

        calls = change_calls.cancel_many(self._keys, (job.token for job in jobs))
        outcomes = [out for call in calls for out in run(self._client, call).values()]
        return set(outcomes) <= {states.Change.CANCELLED}

    def _payloads(self, jobs: Sequence[Any]) -> list[bytes]:
        from django_delayq.core import queue_reads
        from django_delayq.transport.run import run

        return [
            run(self._client, queue_reads.inspect(self._keys, job.token)).payload
            for job in jobs
        ]

    def clear(self) -> None:
        bench.delete_queue(self._client, self._queue)


def _later() -> int:
    return random.randint(3_600, 86_400)


def _sleep_until(when: Any) -> None:
    time.sleep(max(0.0, when.timestamp() - time.time()) + 0.01)


if __name__ == "__main__":
    main()
