"""``python -m benchmarks.compare REVISION``: is this checkout as fast and as punctual as an earlier commit?

Both run in turns, each measurement in a fresh process on a fresh server, so that a machine that drifts drifts for
both. Beside each rate stands the processor time that a job costs: client or worker and server together, which a busy
machine disturbs far less. The verdict is the ratio of each pair: its median, and the interval that holds the true median with a
probability of at least 95 %, whatever the distribution.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks import bench, latency, rates
from tests.servers import available_kinds

#: What is measured, and whether more is better.
FIGURES = {
    "schedule(), list": True,
    "schedule(), no list": True,
    "schedule_many(), list": True,
    "schedule_many(), no list": True,
    "worker, list": True,
    "worker, no list": True,
    "schedule(), list, processor": False,
    "schedule(), no list, processor": False,
    "schedule_many(), list, processor": False,
    "schedule_many(), no list, processor": False,
    "worker, list, processor": False,
    "worker, no list, processor": False,
    "lateness p50, no list": False,
    "lateness p99, no list": False,
}
#: With fewer, no interval between two of the ratios holds the median with a probability of 95 %.
LEAST_PAIRS = 6
#: Jobs of a drain: 20,000 end in less than half a second, in which a worker still learns how many to claim at a time.
DRAINED = 60_000
#: Files that the measuring code needs; both sides take them from this checkout.
SHARED = ("benchmarks", "tests/__init__.py", "tests/servers.py", "tests/polling.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__
    )
    parser.add_argument("revision", help="the commit to compare with, or 'measure'")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument(
        "--seconds", type=int, default=8, help="of jobs for lateness; 0 leaves it out"
    )
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    if options.pairs < LEAST_PAIRS:
        parser.error(
            f"--pairs {options.pairs}: an interval takes {LEAST_PAIRS} or more"
        )
    if options.revision == "measure":
        measure(options.server, options.seconds)
    else:
        compare(options.revision, options.pairs, options.server, options.seconds)


def compare(revision: str, pairs: int, kind: str, seconds: int) -> None:
    """Measure both in turns and print the ratios, this checkout over the revision."""
    with tempfile.TemporaryDirectory() as folder:
        earlier = check_out(revision, Path(folder) / "earlier")
        here: dict[str, list[float]] = {name: [] for name in FIGURES}
        there: dict[str, list[float]] = {name: [] for name in FIGURES}
        for number in range(pairs):
            # The second side meets a warmer machine, so the order changes with each pair.
            sides = [(bench.ROOT, here), (earlier, there)]
            for root, figures in sides if number % 2 else reversed(sides):
                for name, value in _measured(root, kind, seconds).items():
                    figures[name].append(value)
            print(f"\rpair {number + 1} of {pairs}", end="", file=sys.stderr)
    print(file=sys.stderr)
    rows = [
        (
            name,
            *(f"{statistics.median(side[name]):,.4g}" for side in (there, here)),
            *_verdict(here[name], there[name]),
            "more is better" if is_rate else "less is better",
        )
        for name, is_rate in FIGURES.items()
        if here[name]
    ]
    print(f"{kind}, {pairs} pairs, this checkout over {revision}\n")
    bench.table(
        ("what: jobs/s, µs a job, ms", revision, "here", "ratio", "95 % interval", ""),
        rows,
    )


def check_out(revision: str, root: Path) -> Path:
    """Clone an earlier commit, with the measuring code of this checkout."""
    subprocess.run(
        ["git", "clone", "--quiet", "--no-checkout", str(bench.ROOT), str(root)],
        check=True,
    )
    subprocess.run(
        ["git", "-C", str(root), "checkout", "--quiet", revision], check=True
    )
    for name in SHARED:
        source, target = bench.ROOT / name, root / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return root


def _measured(root: Path, kind: str, seconds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.compare", "measure"]
    told = subprocess.run(
        [*command, "--server", kind, "--seconds", str(seconds)],
        cwd=root,
        env=bench.environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise SystemExit(f"{root}: {told.stdout}{told.stderr}")
    figures: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
    return figures


def _verdict(here: Sequence[float], there: Sequence[float]) -> tuple[str, str]:
    ratios = sorted(one / other for one, other in zip(here, there, strict=True))
    rank = _rank(len(ratios))
    return (
        f"{statistics.median(ratios):.3f}",
        f"{ratios[rank]:.3f} – {ratios[-1 - rank]:.3f}",
    )


def _rank(count: int) -> int:
    """Return how many values lie outside the interval on each side: the binomial bound for the median."""
    outside, rank = 0.0, 0
    while True:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 0.05:
            return rank - 1
        rank += 1


def measure(kind: str, seconds: int) -> None:
    """Print one measurement of each figure as JSON, in the last line."""
    figures: dict[str, float] = {}
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks

        for task, how in ((tasks.noop, "list"), (tasks.noop_flat, "no list")):
            queue = task.options.queue
            for name, count, jobs in (
                ("schedule()", rates.schedule_one_by_one, rates.ONE_BY_ONE),
                ("schedule_many()", rates.schedule_many, rates.JOBS),
                ("worker", drain, DRAINED),
            ):
                before_s = processor_s(client)
                figures[f"{name}, {how}"] = count(client, task)
                spent_s = processor_s(client) - before_s
                bench.delete_queue(client, queue)
                if count is drain:
                    spent_s -= without_jobs_s(client, task)
                figures[f"{name}, {how}, processor"] = spent_s / jobs * 1e6
        if seconds:
            late = latency.measure(tasks.noop_flat, seconds)
            figures["lateness p50, no list"] = bench.percentile(late, 0.5)
            figures["lateness p99, no list"] = bench.percentile(late, 0.99)
    print(json.dumps(figures))


def drain(client: redis.Redis, task: Any) -> float:
    return rates.drain(client, task, DRAINED)


def without_jobs_s(client: redis.Redis, task: Any) -> float:
    """Return what `drain` spends besides draining: on sending its jobs, and on a worker's start."""
    from django_delayq import schedule_many

    before_s = processor_s(client)
    schedule_many(task.prepare(3600, i) for i in range(DRAINED))
    bench.delete_queue(client, task.options.queue)
    with bench.working(
        "--burst", "--queue", task.options.queue, "--verbosity", "0"
    ) as worker:
        worker.wait()
    return processor_s(client) - before_s


def processor_s(client: redis.Redis) -> float:
    """Return the processor time spent so far by this process, its children that have ended, and the server."""
    times = os.times()
    told = client.info("cpu")
    ours = times.user + times.system + times.children_user + times.children_system
    return float(ours + told["used_cpu_user"] + told["used_cpu_sys"])


if __name__ == "__main__":
    main()
