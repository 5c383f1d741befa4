"""``python -m benchmarks.finding``: what does it cost to find jobs among a million, and to change all that is found?

A call of a search is timed by the server: in its processor's time, by its own clock, and the longest by its SLOWLOG. A
pause of the machine in the middle of a call counts as the call's, except in the processor's time. The first job is timed by the caller, from ``find_jobs`` on.
"""

import argparse
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import redis

from benchmarks import bench
from tests.servers import available_kinds

#: The goals: ms of the server for a step, and ms until the first job of a state is there.
STEP_MS, FIRST_MS = 5, 20
#: Calls that take longer are looked at one by one: few do, so that none is pushed out of the server's log of them.
SLOW_MS = 2.5
#: Times that a search for the first job is made.
TIMES = 200
#: Jobs in each of the states that are not the usual one.
FEW = 100
STATES = ("scheduled", "due", "running", "retrying", "dead")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    measure(options.server, options.jobs)


def measure(kind: str, jobs: int) -> None:
    """Print the cost of a step, of the first job in each state, and the rate of each change."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks
        from django_delayq import find_jobs, schedule_many

        print(f"scheduling {jobs:,} jobs …", flush=True)
        schedule_many(_prepared(tasks.noop_flat, jobs))
        _spread_over_states(client, tasks.noop_flat)
        client.config_set("slowlog-log-slower-than", int(SLOW_MS * 1000))
        turns = bench.turns(client)
        rows = [
            _steps(
                client,
                "no search: a script that only counts",
                lambda: _count(client, turns, 10_000),
            ),
            _steps(client, "all jobs, none of them read", lambda: _walk(client)),
        ]
        for what, sought in (
            ("all jobs", {}),
            ("a task that has none", {"task": "shop.tasks.gone"}),
            ("a text that is nowhere", {"text": "nowhere"}),
            (
                "due in one of 24 hours",
                {"due": (timedelta(hours=5), timedelta(hours=6))},
            ),
        ):
            found: Any = find_jobs(queue="flat", **sought)
            rows.append(_steps(client, what, lambda found=found: sum(1 for _ in found)))
        head = (
            "search",
            "found",
            "s",
            "calls",
            "server: processor ms",
            "ms",
            "longest",
            f"above {STEP_MS} ms",
        )
        bench.table(head, rows)
        print(f"goal: {STEP_MS} ms a call\n")
        rows = []
        for state in STATES:
            times = []
            for _ in range(TIMES):
                start = time.perf_counter()
                next(iter(find_jobs(queue="flat", state=state)))
                times.append((time.perf_counter() - start) * 1000)
            rows.append(
                (state, *(f"{bench.percentile(times, p):.2f}" for p in (0.5, 0.99, 1)))
            )
        bench.table(("first job that is", "half ms", "p99", "longest"), rows)
        print(f"goal: {FIRST_MS} ms\n")
        rows = []
        for name, *args in (("reschedule", 90_000), ("run_now",), ("cancel",)):
            some = find_jobs(queue="flat", state="scheduled", limit=20_000)
            start = time.perf_counter()
            changed = getattr(some, name)(*args)
            took = time.perf_counter() - start
            rows.append((name, f"{changed.won:,}", f"{changed.won / took:,.0f}"))
        bench.table(("change", "jobs", "a second"), rows)


def _prepared(task: Any, jobs: int) -> Iterator[Any]:
    for n in range(jobs):
        # In no order, over a day.
        yield task.prepare(3_600 + n * 7919 % 86_400, n)


def _spread_over_states(client: redis.Redis, task: Any) -> None:
    """Have some jobs run, retry, and be dead."""
    import os

    from django_delayq import schedule_many
    from django_delayq.core import claim as claim_calls
    from django_delayq.core import lease_ends
    from django_delayq.core.keys import DeliveryKeys
    from django_delayq.core.lease_ends import Failed, Rejected
    from django_delayq.transport.run import run

    keys = DeliveryKeys.of("flat")
    schedule_many(task.prepare(0, n) for n in range(3 * FEW))
    jobs: list[Any] = []
    while len(jobs) < 3 * FEW:
        call = claim_calls.claim(
            keys,
            owner=b"bench---",
            request=os.urandom(8),
            limit=3 * FEW - len(jobs),
            lease_ms=3_600_000,
        )
        jobs += run(client, call).jobs
    error = b'{"error":"it broke","kind":"x"}'
    failed = [Failed(job.token, job.fence, "+3600000", error) for job in jobs[:FEW]]
    run(client, lease_ends.retry(keys, failed))
    dead = [Rejected(job.token, job.fence, error) for job in jobs[FEW : 2 * FEW]]
    run(client, lease_ends.bury(keys, dead))
    schedule_many(task.prepare(0, n) for n in range(FEW))


def _walk(client: redis.Redis) -> int:
    from django_delayq.core import search_calls
    from django_delayq.core.keys import DeliveryKeys
    from django_delayq.core.states import State
    from django_delayq.transport.run import run

    place = search_calls.first_place([*State], now_ms=0)
    found = 0
    while not place.is_at_end:
        call = search_calls.search(
            DeliveryKeys.of("flat"), place, payload_bytes=1 << 20
        )
        page = run(client, call)
        found += len(page.found)
        place = page.place
    return found


def _processor_s(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _steps(client: redis.Redis, what: str, search: Any) -> tuple[str, ...]:
    client.config_resetstat()
    client.slowlog_reset()
    before = _processor_s(client)
    start = time.perf_counter()
    found = search()
    took = time.perf_counter() - start
    used = _processor_s(client) - before
    stats = client.info("commandstats")
    calls = [
        stats[name] for name in stats if name in ("cmdstat_eval", "cmdstat_evalsha")
    ]
    count, spent = sum(c["calls"] for c in calls), sum(c["usec"] for c in calls)
    slow = [entry["duration"] / 1000 for entry in client.slowlog_get(1024)]
    return (
        what,
        f"{found:,}",
        f"{took:.1f}",
        f"{count:,}",
        f"{used / count * 1000:.2f}",
        f"{spent / count / 1000:.2f}",
        f"{max(slow):.1f}" if slow else f"< {SLOW_MS:g}",
        f"{sum(ms > STEP_MS for ms in slow):,}",
    )


def _count(client: redis.Redis, turns: int, calls: int) -> int:
    for _ in range(calls):
        client.eval(bench.COUNT, 0, turns)
    return 0


if __name__ == "__main__":
    main()
