"""A key that goes out of use while jobs wait and workers run: does each run once, what does it cost, what is slow?

``python -m benchmarks.rotation [--jobs 100000] [--list]``. Workers that have the old key only run beside workers that
have the new one only, so each holds what the other has to run.
"""

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import redis

from benchmarks import bench
from tests.polling import wait_until
from tests.servers import available_kinds

OLD, NEW = "the old secret of the benchmark", "the new secret of the benchmark"
#: Longer than any run takes.
DEADLINE_S = 3_600
#: Jobs that one call schedules.
PART = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument(
        "--list", action="store_true", help="on a queue with Redisson's list"
    )
    options = parser.parse_args()
    with (
        bench.serving(options.server) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        marks = Path(folder, "marks")
        marks.touch()
        os.environ["DELAYQ_BENCH_MARKS"] = str(marks)
        run = _Run(server.client(), options.jobs, marks, is_listed=options.list)
        run.rotate()
        run.hold_and_release()


class _Run:
    def __init__(
        self, client: redis.Redis, jobs: int, marks: Path, *, is_listed: bool
    ) -> None:
        from benchmarks import tasks
        from django_delayq import conf

        self._client, self._jobs, self._marks = client, jobs, marks
        self._task = tasks.mark if is_listed else tasks.mark_flat
        self._queue = self._task.options.queue
        self._keys = conf.get_settings().queue(self._queue).keys
        self._rows: list[tuple[str, ...]] = []
        self._next = 0

    def rotate(self) -> None:
        """Take a key out of use while jobs fall due and others are scheduled."""
        with keys(OLD):
            self._measured("schedule, old key", self._schedule, self._jobs * 6 // 10)
        with keys(OLD), bench.working("--queue", self._queue, "--verbosity", "0"):
            with keys(NEW), bench.working("--queue", self._queue, "--verbosity", "0"):
                with keys(OLD):
                    self._schedule(self._jobs // 10)
                with keys(NEW, OLD):
                    scheduler = threading.Thread(
                        target=self._schedule, args=(self._jobs * 3 // 10,)
                    )
                    scheduler.start()
                    self._measured("resign while both run", self._resign)
                    scheduler.join()
                self._measured("all have run", self._wait_for_all)
        self._tell("Rotation")

    def hold_and_release(self) -> None:
        """Give a worker only jobs whose key it does not have, and then the key."""
        from django_delayq.core import queue_reads
        from django_delayq.core.states import State
        from django_delayq.transport.run import run

        with keys(OLD):
            self._schedule(self._jobs, due_s=0)
        held = self._keys.held
        with keys(NEW), bench.working("--queue", self._queue, "--verbosity", "0"):
            self._measured(
                "hold all",
                lambda: self._wait_for(lambda: self._client.zcard(held) == self._jobs),
            )
        self._measured(
            "counts", lambda: run(self._client, queue_reads.counts(self._keys))
        )
        page = queue_reads.page(self._keys, State.HELD, first=self._jobs // 2, count=50)
        self._measured("page of the admin", lambda: run(self._client, page))
        self._measured("sweep", self._sweep)
        with keys(NEW, OLD):
            self._measured("resign and release", self._resign)
        with keys(NEW), bench.working("--queue", self._queue, "--verbosity", "0"):
            self._measured("all have run", self._wait_for_all)
        with keys(OLD):
            self._schedule(self._jobs, due_s=0)
        with keys(NEW), bench.working("--queue", self._queue, "--verbosity", "0"):
            self._wait_for(lambda: self._client.zcard(held) == self._jobs)
        with keys(NEW, OLD), bench.working("--queue", self._queue, "--verbosity", "0"):
            self._measured("release and run, worker with both", self._wait_for_all)
        self._tell("Held")

    def _schedule(self, count: int, due_s: int = 20) -> int:
        from django_delayq import schedule_many

        for first in range(0, count, PART):
            part = range(self._next, self._next + min(PART, count - first))
            self._next = part.stop
            schedule_many(
                self._task.prepare(random.uniform(0, due_s), number) for number in part
            )
        return count

    def _resign(self) -> str:
        from django.core.management import call_command

        out = StringIO()
        call_command("delayq_resign", self._queue, stdout=out, stderr=StringIO())
        return out.getvalue().splitlines()[0]

    def _sweep(self) -> int:
        from django_delayq.core import sweep as sweep_calls
        from django_delayq.transport.run import run

        calls = 0
        for which in sweep_calls.SWEPT:
            cursor = 0
            while True:
                calls += 1
                swept = run(
                    self._client, sweep_calls.sweep(self._keys, which, cursor=cursor)
                )
                if not (cursor := swept.cursor):
                    break
        return calls

    def _ran(self) -> int:
        return self._marks.stat().st_size // 9

    def _wait_for(self, predicate: Callable[[], bool]) -> None:
        wait_until(predicate, description="it is done", timeout=DEADLINE_S)

    def _wait_for_all(self) -> str:
        from django_delayq.core import queue_reads
        from django_delayq.transport.run import run

        def counts() -> Any:
            return run(self._client, queue_reads.counts(self._keys))

        self._wait_for(lambda: self._ran() >= self._next and not counts().running)
        ran = Counter(self._marks.read_text().split())
        told = counts()
        left = (told.waiting, told.held, told.retrying, told.dead, told.quarantined)
        assert len(ran) == self._next
        assert set(ran.values()) == {1}, "each ran once"
        assert left == (0, 0, 0, 0, 0), told
        assert not told.counters.get("quarantined"), told
        return f"{len(ran):,} jobs, each once"

    def _measured(self, what: str, do: Callable[..., object], *args: object) -> None:
        self._client.slowlog_reset()
        start = time.perf_counter()
        told = do(*args)
        took_s = time.perf_counter() - start
        slow_us, command = bench.slowest_us(self._client)
        self._rows.append(
            (what, f"{took_s:.2f}", f"{slow_us / 1000:.1f}", command, str(told)[:110])
        )
        print(self._rows[-1], flush=True)

    def _tell(self, title: str) -> None:
        print(f"\n# {title}: {self._jobs:,} jobs\n")
        head = ("what", "s", "longest call, ms", "which", "")
        bench.table(head, self._rows)
        self._rows.clear()


@contextmanager
def keys(*secrets: str) -> Iterator[None]:
    """Sign with the first key, here and in workers that start from now on."""
    from django.conf import settings
    from django.test import override_settings

    before = os.environ.get("DELAYQ_BENCH_KEYS")
    os.environ["DELAYQ_BENCH_KEYS"] = "\n".join(secrets)
    try:
        with override_settings(DELAYQ={**settings.DELAYQ, "KEYS": list(secrets)}):
            yield
    finally:
        del os.environ["DELAYQ_BENCH_KEYS"]
        if before is not None:
            os.environ["DELAYQ_BENCH_KEYS"] = before


if __name__ == "__main__":
    main()
