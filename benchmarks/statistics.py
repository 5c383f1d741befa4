"""``python -m benchmarks.statistics``: what does it cost that a queue keeps statistics?

Drains of no-ops in turns, with ``STATISTICS`` 0 and 1,000: their rates, and the processor time of a job, worker
and server together, which a busy machine disturbs far less. In a third turn a client reads once a second what an overview
shows. Then, how much of the server's memory 20 busy tasks take after eight hours and 90 days.
"""

import argparse
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from benchmarks import bench, rates
from benchmarks.compare import DRAINED, processor_s, without_jobs_s
from tests.clock import at

#: The bars: the rate with statistics over the rate without; and the same while somebody looks.
SHARE, WATCHED_SHARE = 0.98, 0.97
TURNS = ("off", "on", "watched")
TASKS = 20
HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="a kind of server")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--jobs", type=int, default=1_000, help="jobs an hour of each task, for memory"
    )
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        client = server.client()
        if options.rounds:
            _measure_rates(client, options.rounds)
        _measure_memory(client, options.jobs)


def _measure_rates(client: redis.Redis, rounds: int) -> None:
    speed: dict[str, list[float]] = {turn: [] for turn in TURNS}
    spent: dict[str, list[float]] = {turn: [] for turn in TURNS}
    for number in range(rounds):
        for turn in TURNS[:: 1 if number % 2 else -1]:
            # Only the worker, a process of its own, reads it.
            os.environ["DELAYQ_BENCH_STATISTICS"] = "0" if turn == "off" else "1000"
            with _watching(turn == "watched"):
                jobs_a_second, us_a_job = _drain(client)
            speed[turn].append(jobs_a_second)
            spent[turn].append(us_a_job)
    bench.table(
        ("statistics", "jobs/s, median (least – most)", "processor µs a job"),
        [
            (turn, bench.spread(speed[turn]), bench.spread(spent[turn], "{:.1f}"))
            for turn in TURNS
        ],
    )
    for turn, bar in (("on", SHARE), ("watched", WATCHED_SHARE)):
        rate = [on / off for on, off in zip(speed[turn], speed["off"], strict=True)]
        time = [off / on for on, off in zip(spent[turn], spent["off"], strict=True)]
        form = "{:.3f}"
        print(
            f"{turn} to off (bar: {bar}): rates {bench.spread(rate, form)},"
            f" jobs for the same processor time {bench.spread(time, form)}"
        )


def _drain(client: redis.Redis) -> tuple[float, float]:
    """Return jobs a second, and the processor time of each without what it takes to send it, µs."""
    from benchmarks import tasks

    before_s = processor_s(client)
    rate = rates.drain(client, tasks.noop_flat, DRAINED)
    spent_s = processor_s(client) - before_s
    bench.delete_queue(client, tasks.noop_flat.options.queue)
    spent_s -= without_jobs_s(client, tasks.noop_flat)
    return rate, spent_s / DRAINED * 1e6


@contextmanager
def _watching(is_watched: bool) -> Iterator[None]:
    """Read what the admin's overview and its page of tasks show, once a second."""
    from django_delayq import conf
    from django_delayq.display.overview import look
    from django_delayq.features.statistics.api import tasks_statistics

    queues = list(conf.get_settings().queues.values())
    ahead_ms = [(n + 1) * 60_000 for n in range(96)]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(1.0):
            look(queues, minutes=60, ahead_ms=ahead_ms)
            tasks_statistics(hours=2)

    thread = threading.Thread(target=watch)
    if is_watched:
        thread.start()
    yield
    is_over.set()
    if is_watched:
        thread.join()


def _measure_memory(client: redis.Redis, jobs: int) -> None:
    from django_delayq.core.keys import DeliveryKeys
    from django_delayq.features.statistics import calls as statistics_calls
    from django_delayq.features.statistics.calls import Figures, Outcome, total
    from django_delayq.features.statistics.worker import counted
    from django_delayq.transport.run import run

    rand = random.Random(1)

    def figures(count: int, number: int) -> Figures:
        # A median of some ms late; of the tasks, from 0.4 ms to 5 s long; 46 buckets wide.
        late = [rand.lognormvariate(7.5, 1) for _ in range(count)]
        took = [rand.lognormvariate(6 + number / 2, 1) for _ in range(count)]
        outcomes = Counter({Outcome.SUCCEEDED: count, Outcome.RETRYING: 3})
        return Figures(outcomes, counted(late), counted(took))

    def measured(count: int) -> list[dict[str, Figures]]:
        found = []
        for _ in range(5):
            tasks = {
                f"shop.orders.tasks.do_something_{n}": figures(count, n)
                for n in range(TASKS)
            }
            found.append({"": total(tasks.values()), **tasks})
        return found

    keys = DeliveryKeys.of("measured")
    now_us = 500_000 * HOUR_US
    for step_us, steps, pool in (
        (HOUR_US, 2_200, measured(jobs)),
        (MINUTE_US, 500, measured(max(1, jobs // 60))),
    ):
        for number in range(steps):
            names = list(pool[number % len(pool)].items())
            for start in range(0, len(names), statistics_calls.FIGURES_BATCH):
                part = dict(names[start : start + statistics_calls.FIGURES_BATCH])
                add = at(
                    now_us, statistics_calls.add_figures(keys, part, most_tasks=1_000)
                )
                for closed in run(client, add):
                    run(client, statistics_calls.pack_figures(keys, closed))
            now_us += step_us
    used = {
        name: client.memory_usage(getattr(keys, name), samples=0)
        for name in ("minute", "minutes", "hour", "hours", "totals")
    }
    bench.table(("key", "bytes"), [(name, f"{size:,}") for name, size in used.items()])
    print(
        f"{TASKS} tasks of {jobs:,} jobs an hour: {sum(used.values()) / 1e6:.1f} MB"
        " (bar: 10)"
    )


if __name__ == "__main__":
    main()
