"""What the benchmarks share: a server, a worker, the baseline B, and tables."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import redis

from tests.servers import Server

ROOT = Path(__file__).resolve().parent.parent
#: B: one script with one ZADD.
BASELINE = "return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])"
#: A call that holds the server longer than this is slow.
SLOW_US = 5_000
#: Options of a server that notes each call of more than 1 ms.
SLOW_LOG = {"slowlog-log-slower-than": "1000", "slowlog-max-len": "1024"}
#: A script that touches nothing: what is slow in it is the machine.
COUNT = "local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + #tostring(i) end return n"


@contextmanager
def running(kind: str, **options: str) -> Iterator[Server]:
    """Start a server of a kind on loopback TCP."""
    server = Server(kind, SLOW_LOG | options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving(kind: str, **options: str) -> Iterator[Server]:
    """Start a server of a kind and point Django at it."""
    with running(kind, **options) as server:
        os.environ["DELAYQ_BENCH_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        import django

        django.setup()
        print(
            f"{kind} {'.'.join(map(str, server.version))}, redis-py {redis.__version__}, Python {sys.version.split()[0]}"
        )
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
        yield server


def module(name: str, before: str) -> Any:
    """Import a module of the package; in an earlier commit, by the name that it had before."""
    try:
        return import_module(f"django_delayq.{name}")
    except ModuleNotFoundError:
        return import_module(f"django_delayq.{before}")


def run_for_each(module: str, kinds: Sequence[str], *arguments: str) -> None:
    """Run a benchmark once for each kind of server, in a process of its own: settings are read once a process."""
    for kind in kinds:
        subprocess.run(
            [sys.executable, "-m", module, "--server", kind, *arguments],
            cwd=ROOT,
            check=True,
        )


@contextmanager
def working(
    *arguments: str, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker; its log goes to a file, or nowhere."""
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "delayq_worker", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env=environment(ROOT),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a process that imports the package from a checkout."""
    return {**os.environ, "PYTHONPATH": str(root)}


def baseline(client: redis.Redis, calls: int = 3_000) -> float:
    """Return B, calls a second of a bare redis-py EVALSHA loop."""
    sha = client.script_load(BASELINE)
    key = "delayq_bench_baseline"
    start = time.perf_counter()
    for i in range(calls):
        client.evalsha(sha, 1, key, i, f"member {i}")
    rate = calls / (time.perf_counter() - start)
    client.delete(key)
    return rate


def rate(do: Callable[[], int]) -> float:
    """Return how many a second ``do`` gets through; it returns how many it did."""
    start = time.perf_counter()
    count = do()
    return count / (time.perf_counter() - start)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of values, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """Show the median and the range of the runs."""
    median, low, high = (
        form.format(value)
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({low} – {high})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print(
            "| "
            + " | ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
            + " |"
        )
    print()


def slowest_us(client: redis.Redis) -> tuple[int, str]:
    """Return how long the longest command since the last reset held the server, and which it was."""
    entries = client.slowlog_get(1024)
    if not entries:
        return 0, "nothing above 1 ms"
    worst = max(entries, key=lambda entry: entry["duration"])
    return int(worst["duration"]), worst["command"][:60].decode(errors="replace")


def turns(client: redis.Redis) -> int:
    """Return how far `COUNT` counts in 1 ms."""
    turns = 1_000
    while True:
        client.config_resetstat()
        for _ in range(100):
            client.eval(COUNT, 0, turns)
        if client.info("commandstats")["cmdstat_eval"]["usec_per_call"] >= 900:
            return turns
        turns = int(turns * 1.2)


def delete_queue(client: redis.Redis, name: str) -> None:
    """Remove every key of a queue."""
    for key in [*client.scan_iter(f"*{{{name}}}*", count=10_000), name.encode()]:
        client.unlink(key)
