"""``python -m benchmarks.outbox``: what does the outbox cost a transaction beside ``on_commit=True``, and how fast are rows
sent that nobody has sent?

A transaction inserts an order and schedules its job. The three ways are measured in turns. Then a backlog of rows is
committed without being sent, and one worker's relay sends and deletes them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import bench
from tests.databases import Postgres, added
from tests.servers import available_kinds

#: Transactions of one measurement.
ORDERS = 500
ALIAS = "measured"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.outbox", description=__doc__
    )
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    os.environ["DELAYQ_BENCH_OUTBOX"] = "1"
    with bench.serving(options.server), ExitStack() as stack:
        for name in options.database or ("sqlite", "postgres"):
            if name == "postgres":
                cluster = Postgres().start()
                stack.callback(cluster.stop)
                entry: dict[str, Any] = cluster.make_database()
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                entry = {
                    "ENGINE": "django.db.backends.sqlite3",
                    "NAME": str(Path(folder) / "db"),
                    "OPTIONS": {
                        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"
                    },
                }
            with added(ALIAS, {**entry, "CONN_MAX_AGE": None}):
                measure(name, options.rounds, options.backlog)


def measure(name: str, rounds: int, backlog: int) -> None:
    from django.core.management import call_command
    from django.db import connections

    from benchmarks import tasks
    from django_delayq.conf import get_settings

    call_command("migrate", "delayq_outbox", database=ALIAS, verbosity=0)
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("create table orders (id integer)")
    task = tasks.noop_flat
    ways: dict[str, Callable[[], object]] = {
        "no job": lambda: None,
        "on_commit=True": _scheduling(task.using(on_commit=ALIAS)),
        "outbox=True": _scheduling(task.using(on_commit=ALIAS, outbox=True)),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, schedule in ways.items():
            took[way].append(_transactions(schedule))
    base = statistics.median(took["on_commit=True"])
    rows = [
        (
            f"{name}: an order, {way}",
            bench.spread([1e6 * each for each in times], "{:.0f}"),
            f"{statistics.median(times) / base:.2f}",
        )
        for way, times in took.items()
    ]
    bench.table(("transaction", "µs, median (least – most)", "× on_commit"), rows)
    keep_s = get_settings().outbox_keep_s
    sent, deleted = _relay(task, backlog, keep_s)
    print(
        f"\n{name}: a backlog of {backlog:,} rows: sent at {sent:,.0f} a second, deleted at {deleted:,.0f}\n"
    )


def _scheduling(task: Any) -> Callable[[], object]:
    return lambda: task.schedule(3600, 1)


def _transactions(schedule: Callable[[], object]) -> float:
    """Return how long one transaction takes, s."""
    from django.db import connections, transaction

    connection = connections[ALIAS]
    begun = time.perf_counter()
    for n in range(ORDERS):
        with transaction.atomic(using=ALIAS):
            with connection.cursor() as cursor:
                cursor.execute("insert into orders values (%s)", [n])
            schedule()
    return (time.perf_counter() - begun) / ORDERS


def _relay(task: Any, backlog: int, keep_s: float) -> tuple[float, float]:
    """Return how many rows a second one relay sends, and deletes once the server has had them for long enough."""
    from django.db import transaction

    from django_delayq.outbox import row_writer
    from django_delayq.outbox.models import OutboxRow
    from django_delayq.outbox.relay import Relay

    OutboxRow.objects.using(ALIAS).all().delete()
    task = task.using(on_commit=ALIAS, outbox=True)
    call = row_writer._Hook.__call__
    row_writer._Hook.__call__ = lambda hook: None  # type: ignore[method-assign]
    with transaction.atomic(using=ALIAS):
        for n in range(backlog):
            task.schedule(3600, n)
    row_writer._Hook.__call__ = call  # type: ignore[method-assign]
    relay, rates = Relay(ALIAS), []
    for field in ("sent", "deleted"):
        begun = time.perf_counter()
        count = sum(getattr(swept, field) for swept in relay.sweep(fresh_ms=0))
        assert count == backlog, (field, count)
        rates.append(backlog / (time.perf_counter() - begun))
        # Nothing is awaited but the time that rows are kept for.
        time.sleep(keep_s + 0.5)
    return rates[0], rates[1]


if __name__ == "__main__":
    main()
