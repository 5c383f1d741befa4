"""Workers that live and figures that were measured, written as workers write them, for the pages to show."""

import random
from collections import Counter
from datetime import timedelta

from django_delayq import __version__
from django_delayq.core.worker_registry import (
    RegistryKeys,
    RunningJob,
    WorkerInfo,
    register,
    unregister,
)
from django_delayq.features.statistics.calls import (
    Figures,
    Histogram,
    Outcome,
    add_figures,
    bucket_of,
    total,
)
from django_delayq.transport.run import run
from tests.admin.filling import Queue
from tests.clock import at


def serve(
    queue: Queue,
    *tokens: str,
    host: str = "web1",
    pid: int = 4711,
    task: str = "shop.tasks.send_reminder",
    version: str = __version__,
    state: str = "working",
) -> str:
    """Say that a process lives, serves a queue and runs these jobs; returns its id."""
    seconds, micros = queue.client.time()
    now_ms = seconds * 1000 + micros // 1000
    info = WorkerInfo(
        host,
        pid,
        version,
        2,
        [queue.name],
        threads=8,
        coroutines=100,
        busy_threads=len(tokens),
        jobs=[RunningJob(queue.name, token, task, now_ms - 3_000) for token in tokens],
        memory=61_000_000,
        uptime_ms=7_500_000,
        state=state,
    )
    worker_id = f"{queue.name}-{host}-{pid}"
    run(queue.client, register(RegistryKeys.of(), worker_id, info))
    return worker_id


def leave(queue: Queue, worker_id: str) -> None:
    run(queue.client, unregister(RegistryKeys.of(), worker_id))


def figures_of(
    runs: int, *, failed: int = 0, late_ms: float = 2, took_ms: float = 30
) -> Figures:
    """Return figures of so many runs, all as late and as long."""
    return Figures(
        Counter({Outcome.SUCCEEDED: runs - failed, Outcome.RETRYING: failed}),
        Histogram(
            Counter({bucket_of(late_ms * 1000): runs}), int(late_ms * 1000) * runs
        ),
        Histogram(
            Counter({bucket_of(took_ms * 1000): runs}), int(took_ms * 1000) * runs
        ),
    )


def measure(queue: Queue, ago: timedelta = timedelta(), **tasks: Figures) -> None:
    """Add figures of tasks, by names with ``__`` for dots, as a worker would have at a time ago."""
    seconds, micros = queue.client.time()
    now_us = seconds * 1_000_000 + micros - round(ago.total_seconds() * 1e6)
    counted = {name.replace("__", "."): each for name, each in tasks.items()}
    names = list(counted)
    for first in range(0, len(names), 19):
        part = {name: counted[name] for name in names[first : first + 19]}
        part[""] = total(part.values())
        call = at(now_us, add_figures(queue.keys, part, most_tasks=1_000))
        run(queue.client, call)


def measure_an_hour(queue: Queue) -> None:
    """Add figures of an hour with ups and downs, the same each time."""
    dice = random.Random(7)
    for minute in reversed(range(60)):
        if minute in (40, 41, 42):
            continue
        many = dice.randrange(300, 500) if 15 < minute < 25 else dice.randrange(40, 160)
        slow = figures_of(many // 50 + 1, late_ms=dice.choice((8, 20, 90)), took_ms=400)
        usual = figures_of(
            many,
            failed=many // 6 if minute in (18, 19, 20, 5) else 0,
            late_ms=dice.choice((1, 2)),
            took_ms=dice.choice((20, 30)),
        )
        measure(
            queue,
            timedelta(minutes=minute),
            shop__tasks__cancel_unpaid=usual,
            shop__tasks__send_invoice=slow,
        )
