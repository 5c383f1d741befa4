"""``python -m benchmarks.full``: what does a full queue of a million cost those who schedule, and its server?

`schedule_many` of 10,000 jobs into the full queue, again and again: how many calls it makes, what the queue holds
afterwards, the longest call, and how long a stranger's ``PING`` takes meanwhile. Then what ``MAX_JOBS`` costs while
there is room, in turns with a queue without it.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from benchmarks import bench

#: Bar: no stall of the server above this, ms.
STALL_MS = 5.0
MANY = 10_000
ROUNDS = 15
#: Pings until its standard input is closed, and prints the longest and the median round trip, µs.
PROBER = """
import sys, threading, time, redis
client = redis.Redis.from_url(sys.argv[1])
client.ping()
print("ready", flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
took = []
while not ended.wait(0.0005):
    start = time.perf_counter()
    client.ping()
    took.append(time.perf_counter() - start)
took.sort()
print(took[-1] * 1e6, took[len(took) * 99 // 100] * 1e6, took[len(took) // 2] * 1e6)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="redis7", help="a kind of server")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        client = server.client()
        _limit("full", options.jobs)
        _fill("full", options.jobs)
        _refuse(client, server.url, options.jobs)
        _compare(client)


def _limit(queue: str, jobs: int | None) -> None:
    from django.conf import settings

    from django_delayq import conf

    # Not in benchmarks/settings.py: earlier commits, which `compare` measures with that, do not know MAX_JOBS.
    settings.DELAYQ["QUEUES"][queue] = {} if jobs is None else {"MAX_JOBS": jobs}
    conf.forget_connections(setting="DELAYQ")


def _fill(queue: str, count: int) -> None:
    from benchmarks import tasks
    from django_delayq import schedule_many

    print(f"scheduling {count:,} jobs …", flush=True)
    task = tasks.noop.using(queue=queue)
    for start in range(0, count, MANY):
        size = min(MANY, count - start)
        schedule_many(task.prepare(3_600 + n % 80_000, n) for n in range(size))


def _refuse(client: redis.Redis, url: str, held: int) -> None:
    from benchmarks import tasks
    from django_delayq import QueueFull, schedule_many
    from django_delayq.core.keys import DeliveryKeys

    task = tasks.noop.using(queue="full")
    timeout_set = DeliveryKeys.of("full").queue.timeout_set
    rows = []
    for what, is_all in (
        ("schedule_many of 10,000, which ends at the first refusal", False),
        ("all 20 calls of these", True),
    ):
        jobs = [task.prepare(3_600, n) for n in range(MANY)]
        client.slowlog_reset()
        client.config_resetstat()
        before_s = _processor_s(client)
        with _pinging(url) as pings:
            for _ in range(ROUNDS):
                for batch in _parts(jobs) if is_all else [jobs]:
                    with suppress(QueueFull):
                        schedule_many(batch)
        spent_s = _processor_s(client) - before_s
        calls = client.info("commandstats")["cmdstat_evalsha"]
        slow_us = max(bench.slowest_us(client)[0], calls["usec_per_call"])
        assert client.zcard(timeout_set) == held
        rows.append(
            (
                what,
                f"{calls['calls'] / ROUNDS:.1f}",
                f"{spent_s * 1000 / calls['calls']:.2f}",
                f"{slow_us / 1000:.2f}",
                f"{pings[0] / 1000:.2f} / {pings[1] / 1000:.2f} / {pings[2] / 1000:.2f}",
            )
        )
    with _pinging(url) as pings:
        time.sleep(2)
    idle = f"{pings[0] / 1000:.2f} / {pings[1] / 1000:.2f} / {pings[2] / 1000:.2f}"
    rows.append(("nothing", "", "", "", idle))
    bench.table(
        (
            f"into a full queue of {held:,}",
            "calls",
            "server's processor, ms a call",
            "longest call, ms",
            "a stranger's PING, ms: longest, p99, median",
        ),
        rows,
    )
    print(f"bar: no stall above {STALL_MS:g} ms, and nothing stored\n")


def _processor_s(client: redis.Redis) -> float:
    """Return the time that the server has used of a processor: a busy machine does not stretch it."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _parts(jobs: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(jobs), 500):
        yield jobs[start : start + 500]


@contextmanager
def _pinging(url: str) -> Iterator[list[float]]:
    """Have another process ping; at the end the list has the longest, the 99th and the median round trip, µs."""
    prober = subprocess.Popen(
        [sys.executable, "-c", PROBER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert prober.stdout is not None
    assert prober.stdin is not None
    prober.stdout.readline()
    took: list[float] = []
    yield took
    prober.stdin.close()
    took += map(float, prober.stdout.read().split())
    prober.wait()


def _compare(client: redis.Redis) -> None:
    """Print what a limit costs while there is room."""
    from benchmarks import tasks
    from django_delayq import schedule_many

    _limit("free", None)
    _limit("limited", 10**9)
    rows = []
    for what, size in (("schedule()", 1_000), ("schedule_many() of 10,000", MANY)):
        rates: dict[str, list[float]] = {"free": [], "limited": []}
        served: dict[str, list[float]] = {"free": [], "limited": []}
        for turn in range(2 * ROUNDS):
            queue = ("free", "limited")[turn % 2]
            task = tasks.noop.using(queue=queue)
            before_s = _processor_s(client)

            def do(task: Any = task, size: int = size) -> int:
                if size == MANY:
                    return len(
                        schedule_many(task.prepare(3_600, n) for n in range(size))
                    )
                for n in range(size):
                    task.schedule(3_600, n)
                return size

            rates[queue].append(bench.rate(do))
            served[queue].append((_processor_s(client) - before_s) * 1e6 / size)
        ratio = statistics.median(rates["limited"]) / statistics.median(rates["free"])
        rows.append(
            (
                what,
                *(bench.spread(rates[queue]) for queue in rates),
                f"{ratio:.2f}",
                *(f"{statistics.median(served[queue]):.1f}" for queue in served),
            )
        )
    bench.table(
        (
            "",
            "without MAX_JOBS, jobs/s",
            "with it",
            "ratio",
            "server's processor, µs a job without",
            "with",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
