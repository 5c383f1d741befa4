"""``python -m benchmarks.periodic late|occurrences``: periodic schedules, how late and how often.

``late``: a schedule comes every second, and half a second after it an ordinary job is due; one idle worker runs both.
``occurrences``: processes move a schedule on that comes every few milliseconds, and one of them is killed each second. Then
every occurrence must have exactly one job.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks import bench
from tests.servers import available_kinds

QUEUE = "flat"
#: How far apart occurrences are, ms: shorter than `every` allows, so that there are many.
INTERVAL_MS = 5
PROCESSES = 8
#: A process that is killed this soon has not begun.
KILL_EVERY_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.periodic", description=__doc__
    )
    parser.add_argument("name", choices=("late", "occurrences"))
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--seconds", type=int, default=30, help="for late")
    parser.add_argument("--occurrences", type=int, default=10_000)
    options = parser.parse_args()
    if options.name == "late":
        late(options.server, options.seconds)
    else:
        occurrences(options.server, options.occurrences)


def late(kind: str, seconds: int) -> None:
    """Print how late the jobs of a schedule begin, beside ordinary jobs."""
    with tempfile.TemporaryDirectory() as folder, bench.serving(kind):
        marks = Path(folder) / "marks"
        marks.touch()
        os.environ["DELAYQ_BENCH_MARKS"] = str(marks)
        from benchmarks import tasks
        from django_delayq import every, schedule_many, store_schedule

        with bench.working("--queue", QUEUE, "--processes", "1", "--verbosity", "0"):
            stored = store_schedule("bench", tasks.tell_late, every(1))
            first_ms = (int(time.time()) + 3) * 1000 + 500
            schedule_many(
                tasks.tell_late.prepare(_at(due_ms), due_ms)
                for due_ms in range(first_ms, first_ms + seconds * 1000, 1000)
            )
            # The first few find caches cold and the worker's lead unlearned.
            time.sleep(seconds + 4)
            stored.delete()
        found = [line.split() for line in marks.read_text().splitlines()]
        rows = []
        for what in ("schedule", "job"):
            values = [float(value) for each, value in found if each == what][3:]
            rows.append(
                (
                    what,
                    str(len(values)),
                    *(
                        f"{bench.percentile(values, share):.2f}"
                        for share in (0.5, 0.9, 0.99)
                    ),
                    f"{max(values):.2f}",
                    f"{min(values):.2f}",
                )
            )
        head = "of a", "runs", "p50 ms", "p90 ms", "p99 ms", "latest ms", "earliest ms"
        bench.table(head, rows)


def occurrences(kind: str, count: int) -> None:
    """Print how many occurrences there were, and how many had another number of jobs than one."""
    with bench.serving(kind) as server:
        told = one_job_a_occurrence(server.client(), server.url, count)
        print(told)
        if not told.startswith("each"):
            sys.exit(1)


def one_job_a_occurrence(client: redis.Redis, url: str, count: int) -> str:
    """Run so many occurrences, and say what came of them."""
    context = multiprocessing.get_context("spawn")
    from django_delayq.core.keys import DeliveryKeys

    keys = DeliveryKeys.of(QUEUE)
    end_ms = context.Value("d", float("inf"))
    rng = random.Random(count)
    processes = []

    def start() -> None:
        process = context.Process(target=move_on, args=(url, end_ms), daemon=True)
        process.start()
        processes.append(process)

    for _ in range(PROCESSES):
        start()
    while not client.exists(keys.periods):
        time.sleep(0.05)
    end_ms.value = time.time() * 1000 + count * INTERVAL_MS
    kills = 0
    while time.time() * 1000 < end_ms.value + 1_000:
        time.sleep(KILL_EVERY_S)
        victim = rng.choice(processes)
        processes.remove(victim)
        victim.kill()
        victim.join()
        kills += 1
        start()
    for process in processes:
        process.join(60)
    # A job that is stored late is due at once, so its start time is not its occurrence.
    found = sorted(
        int(json.loads(json.loads(frame[17:])["body"])["headers"]["occurrence"])
        for frame in client.zrange(keys.queue.timeout_set, 0, -1)
    )
    gaps = {b - a for a, b in itertools.pairwise(found)}
    if gaps == {INTERVAL_MS} and len(found) >= count:
        return f"each of {len(found):,} occurrences has exactly one job; {PROCESSES} processes, {kills} killed"
    return f"{len(found):,} jobs, with {sorted(gaps)} ms between two"


def move_on(url: str, end_ms: Any) -> None:
    """Be a worker that does nothing but move the schedule on."""
    os.environ["DELAYQ_BENCH_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django

    django.setup()
    from benchmarks import tasks
    from django_delayq import conf, periodic
    from django_delayq.features.schedules.worker import SchedulesOfQueue
    from django_delayq.jobs.occurrences import Every
    from django_delayq.transport.clients import own_clients
    from django_delayq.worker.queue_state import QueueState

    periodic(Every(INTERVAL_MS), name="bench", catch_up="all")(tasks.tell_late)
    settings, client = conf.get_settings().queue(QUEUE), own_clients.of_thread()
    state = QueueState(client, settings, 1, os.urandom(8), [SchedulesOfQueue])
    (each,) = state.parts
    clock = 0.0
    while (clock := time.monotonic() * 1000) and time.time() * 1000 < end_ms.value:
        if not (each.is_due(clock, None) and each.turn(clock, None)):
            time.sleep(INTERVAL_MS / 4000)


def _at(epoch_ms: float) -> object:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


if __name__ == "__main__":
    main()
