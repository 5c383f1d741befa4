"""``python -m benchmarks.storm``: 100,000 jobs are due at one instant: how late are the jobs of another queue meanwhile?

One worker process serves both queues, the other one first. Of the storm as it is, and of one that a limit holds back, it
prints how late jobs of the other queue start, some 50 a second, for as long as the storm lasts.

It also prints the longest call that held the server, by its SLOWLOG. A pause of the machine in the middle of a call counts
as the call's. So a second server makes a script that only counts, for about as long as a claim takes, after each job.
"""

import argparse
import re
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis

from benchmarks import bench
from tests.servers import available_kinds

JOBS = 100_000
#: How long before their instant the jobs are scheduled, and a worker is started.
BEFORE_S = 8
#: What holds the storm back, as `set_limit` takes it; None: there is no storm.
STORMS: dict[str, dict[str, Any] | None] = {
    "no storm": None,
    "as fast as it goes": {},
    "RATE 2,000/s": {"rate": "2000/s"},
    "CONCURRENCY 4": {"concurrency": 4},
}
#: The goal, ms of the server for a call.
CALL_MS = 5
#: For how long the script counts that shows what the machine adds.
COUNT_MS = 2
#: Short enough for the log to hold all of them.
SLOWLOG = {"slowlog-log-slower-than": "3000", "slowlog-max-len": "10000"}
_LATE = re.compile(r"job=few:.*lateness_ms=(-?[\d.]+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    with (
        bench.serving(options.server, **SLOWLOG) as server,
        bench.running(options.server, **SLOWLOG) as other,
    ):
        client, idle = server.client(), other.client()
        turns = COUNT_MS * bench.turns(idle)
        rows = [
            (name, *_measure(client, idle, turns, limit, options.seconds))
            for name, limit in STORMS.items()
        ]
    head = (
        "storm",
        "jobs of it run",
        "in s",
        "other queue: p50 ms",
        "p99",
        "longest call, ms",
        f"calls above {CALL_MS} ms",
        f"only counting for {COUNT_MS} ms: longest",
        f"above {CALL_MS} ms",
    )
    bench.table(head, rows)
    print(f"goal: no call above {CALL_MS} ms, the other queue's lateness as before")


def _measure(
    client: redis.Redis,
    idle: redis.Redis,
    turns: int,
    limit: dict[str, Any] | None,
    seconds: float,
) -> tuple[str, ...]:
    from benchmarks import tasks
    from django_delayq import schedule_many, set_limit
    from django_delayq.core import states
    from django_delayq.core.keys import DeliveryKeys

    queue, other = "flat", "few"
    beside = tasks.noop_flat.using(queue=other)

    def done(name: str) -> int:
        counters = DeliveryKeys.of(name).counters
        return int(client.hget(counters, states.State.SUCCEEDED) or 0)

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        if limit:
            set_limit(queue, **limit)
        at = datetime.now(UTC) + timedelta(seconds=BEFORE_S)
        if limit is not None:
            schedule_many(tasks.noop_flat.prepare(at, i) for i in range(JOBS))
        names = ("--queue", other, "--queue", queue, "--processes", "1")
        with bench.working(*names, log=log) as worker:
            while "lease" not in log.read_text():
                if worker.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()))
            for each in (client, idle):
                each.slowlog_reset()
                each.config_resetstat()
            count, start = 0, time.monotonic()
            while (took := time.monotonic() - start) < seconds and done(queue) < JOBS:
                beside.schedule(0.1, count)
                idle.eval(bench.COUNT, 0, turns)
                count += 1
                time.sleep(0.02)
            ran = done(queue)
            calls = (*_calls(client), *_calls(idle))
            while done(other) < count:
                time.sleep(0.05)
        late = [float(text) for text in _LATE.findall(log.read_text())]
    for name in (queue, other):
        bench.delete_queue(client, name)
    return (
        f"{ran:,}",
        f"{took:.1f}",
        f"{bench.percentile(late, 0.5):.1f}",
        f"{bench.percentile(late, 0.99):.1f}",
        *calls,
    )


def _calls(client: redis.Redis) -> tuple[str, str]:
    """Return how long the longest script held a server, and how many held it for too long."""
    stats = client.info("commandstats")
    count = sum(
        stats[name]["calls"]
        for name in ("cmdstat_eval", "cmdstat_evalsha")
        if name in stats
    )
    slow_ms = [
        entry["duration"] / 1000
        for entry in client.slowlog_get(10_000)
        # What a script calls is noted as well.
        if entry["command"].startswith(b"EVAL")
    ]
    longest = f"{max(slow_ms):.1f}" if slow_ms else "below 3"
    return longest, f"{sum(ms > CALL_MS for ms in slow_ms):,} of {count:,}"


if __name__ == "__main__":
    main()
