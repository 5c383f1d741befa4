"""How late an idle worker starts a job, and that it is never early by the server's clock."""

import random
import re
import tempfile
import time
from pathlib import Path

from benchmarks import bench

JOBS_A_SECOND = 50
_LATE = re.compile(r"outcome=succeeded .*lateness_ms=(-?[\d.]+)")


def main(kind: str, seconds: int) -> None:
    """Print the lateness of jobs at random moments, some 50 a second."""
    with bench.serving(kind) as server:
        from benchmarks import tasks

        rows = []
        for task in (tasks.noop, tasks.noop_flat):
            late = measure(task, seconds)
            rows.append(
                (
                    task.options.queue,
                    f"{len(late):,}",
                    *(
                        f"{bench.percentile(late, share):.1f}"
                        for share in (0.5, 0.9, 0.99)
                    ),
                    f"{max(late):.1f}",
                    f"{min(late):.1f}",
                )
            )
            bench.delete_queue(server.client(), task.options.queue)
        bench.table(
            ("queue", "jobs", "p50 ms", "p90 ms", "p99 ms", "latest ms", "earliest ms"),
            rows,
        )
        print(
            "goal: p50 at most 1.5 ms, p99 at most 8 ms, none early (a negative number)"
        )


def measure(task, seconds: int) -> list[float]:
    """Return the lateness of each job, ms, as the worker logs it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        with bench.working("--queue", task.options.queue, log=log) as worker:
            while "lease" not in log.read_text():
                if worker.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            time.sleep(1)
            end = time.monotonic() + seconds
            count = 0
            while time.monotonic() < end:
                task.schedule(random.uniform(0.5, 2.0), count)
                count += 1
                time.sleep(random.expovariate(JOBS_A_SECOND))
            deadline = time.monotonic() + 60
            while (
                len(late := [float(text) for text in _LATE.findall(log.read_text())])
                < count
            ):
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"{count - len(late)} of {count} jobs did not run:\n{log.read_text()[-2000:]}"
                    )
                time.sleep(0.1)
    return late
