"""``python -m benchmarks.sizing``: how much does one node do, and what does a million pending jobs cost?

First, the time that the server itself uses of its processor to store a job, and to have a worker run it: one script runs
at a time, so a second of that time is the most that a node gives in a second. The least of some rounds counts, because
others on the machine only add to it. Then a million jobs that wait: memory, the append-only file, a snapshot, and how
long the server takes to start again.

`benchmarks.pending` has the bytes of a job by size of its payload.
"""

import argparse
import random
import time
from collections.abc import Callable
from string import ascii_letters
from typing import Any

import redis

from benchmarks import bench, rates
from tests.polling import wait_until
from tests.servers import Server

QUEUES = (("flat", "without it"), ("listed", "with it"))
#: Jobs of one figure.
JOBS = 20_000
MIB = 2**20
#: What a job has for its argument: as long as in `benchmarks.pending`, and no file makes it shorter.
ARGUMENT = "".join(random.Random(1).choices(ascii_letters, k=60))
#: A snapshot of a million jobs on a busy machine.
SNAPSHOT_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", action="append", help="a kind of server; again for more of them"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pending", type=int, default=1_000_000)
    options = parser.parse_args()
    kinds = options.server or ["valkey", "redis7", "redis6"]
    if len(kinds) > 1:
        arguments = ("--rounds", str(options.rounds), "--pending", str(options.pending))
        bench.run_for_each("benchmarks.sizing", kinds, *arguments)
        return
    with bench.serving(kinds[0], appendonly="yes", appendfsync="everysec") as server:
        client = server.client(socket_timeout=None)
        if options.rounds:
            _print_rates(client, options.rounds)
        if options.pending:
            _print_pending(server, client, options.pending)


def _print_rates(client: redis.Redis, rounds: int) -> None:
    from benchmarks import tasks

    rows = []
    for queue, what in QUEUES:
        task = tasks.noop.using(queue=queue)
        figures = {
            name: min(_server_us(client, task, measure) for _ in range(rounds))
            for name, measure in MEASURES.items()
        }
        # What a drain costs besides scheduling its jobs, which it does together.
        figures["run"] -= figures["schedule_many()"]
        one_by_one = 1e6 / (figures["schedule()"] + figures["run"])
        together = 1e6 / (figures["schedule_many()"] + figures["run"])
        rows.append(
            (
                what,
                *(f"{us:.1f}" for us in figures.values()),
                f"{one_by_one:,.0f}",
                f"{together:,.0f}",
            )
        )
    bench.table(
        (
            "Redisson's list",
            "schedule(), µs of the server's processor",
            "schedule_many()",
            "claim and acknowledge",
            "most jobs/s, schedule() and run",
            "schedule_many() and run",
        ),
        rows,
    )


def _server_us(
    client: redis.Redis, task: Any, measure: Callable[[redis.Redis, Any], int]
) -> float:
    """Return the server's processor time of a job, µs."""
    before_s = _processor_s(client)
    jobs = measure(client, task)
    spent_s = _processor_s(client) - before_s
    bench.delete_queue(client, task.options.queue)
    return spent_s * 1e6 / jobs


def _processor_s(client: redis.Redis) -> float:
    told = client.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def _one_by_one(client: redis.Redis, task: Any) -> int:
    rates.schedule_one_by_one(client, task)
    return rates.ONE_BY_ONE


def _together(client: redis.Redis, task: Any) -> int:
    rates.schedule_many(client, task)
    return rates.JOBS


def _run(client: redis.Redis, task: Any) -> int:
    rates.drain(client, task, JOBS)
    return JOBS


MEASURES: dict[str, Callable[[redis.Redis, Any], int]] = {
    "schedule()": _one_by_one,
    "schedule_many()": _together,
    "run": _run,
}


def _print_pending(server: Server, client: redis.Redis, jobs: int) -> None:
    rows = []
    for queue, what in QUEUES:
        # At once, because what follows is measured by the memory in use.
        client.execute_command("FLUSHALL", "SYNC")
        before = _used(client)
        filled_s = _fill(queue, jobs)
        used = _used(client) - before
        rewritten_s = _timed(client, "aof_rewrite_in_progress", client.bgrewriteaof)
        size = client.info("persistence")["aof_current_size"]
        snapshot_s = _timed(client, "rdb_bgsave_in_progress", client.bgsave)
        snapshot = (server.data_directory / "dump.rdb").stat().st_size
        fork_ms = client.info("stats")["latest_fork_usec"] / 1000
        server.kill()
        began = time.monotonic()
        server.start()
        started_s = time.monotonic() - began
        rows.append(
            (
                what,
                f"{used / MIB:,.0f}",
                f"{used / jobs:,.0f}",
                f"{filled_s:.0f}",
                f"{size / MIB:,.0f}",
                f"{rewritten_s:.1f}",
                f"{snapshot / MIB:,.0f}",
                f"{snapshot_s:.1f}",
                f"{fork_ms:.0f}",
                f"{started_s:.1f}",
            )
        )
    bench.table(
        (
            "Redisson's list",
            f"{jobs:,} jobs, MiB",
            "bytes a job",
            "scheduled in s",
            "rewritten file, MiB",
            "in s",
            "snapshot, MiB",
            "in s",
            "fork, ms",
            "started again in s",
        ),
        rows,
    )


def _fill(queue: str, jobs: int) -> float:
    from benchmarks import tasks
    from django_delayq import schedule_many

    task = tasks.noop.using(queue=queue)
    began = time.monotonic()
    for start in range(0, jobs, 10_000):
        count = min(10_000, jobs - start)
        schedule_many(task.prepare(3_600 + n % 80_000, ARGUMENT) for n in range(count))
    return time.monotonic() - began


def _used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def _timed(client: redis.Redis, flag: str, start: Callable[[], object]) -> float:
    """Return how long it takes the server to write a file in the background, s."""
    began = time.monotonic()
    start()
    wait_until(
        lambda: not client.info("persistence")[flag],
        description="the server has written its file",
        timeout=SNAPSHOT_S,
    )
    return time.monotonic() - began


if __name__ == "__main__":
    main()
