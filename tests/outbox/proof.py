"""``python -m tests.outbox.proof``: is there a committed order without its job, or one whose job took effect twice?

A site commits orders, each with its job, in one transaction. A worker runs the jobs, as tasks with ``once``. Meanwhile the
site's process, the worker's processes and the server are killed, again and again. When all orders are committed, nothing is
killed any more, and the worker gets the time to finish. Then every order has exactly one effect, no effect is without its
order, and no row is left in the outbox.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import forked
from tests.databases import Postgres
from tests.polling import wait_until
from tests.servers import LASTING, Server, available_kinds
from tests.worker.workers import WorkerProgram, children_of, kill

ROOT = Path(__file__).parents[2]
QUEUE = "orders"
#: How long the last jobs may take, s: leases of the killed have to end, and the relay looks every few seconds.
PATIENCE_S = 120.0


@dataclass
class Outcome:
    """What a run has found."""

    orders: int = 0
    #: Orders without an effect.
    lost: list[int] = field(default_factory=list)
    #: Orders with more than one.
    doubled: list[int] = field(default_factory=list)
    #: Effects of orders that were never committed.
    orphans: list[int] = field(default_factory=list)
    #: Rows that are left in the outbox.
    rows: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.orphans or self.rows)


def prove(
    database: dict[str, Any],
    *,
    orders: int,
    directory: Path,
    seed: int,
    kind: str = available_kinds()[0],
    least_kills: int = 3,
    pause_s: float = 0.6,
) -> Outcome:
    """Run site, worker and server, kill each of them again and again, and compare orders with effects."""
    begun = time.monotonic()
    chance = random.Random(seed)
    with ExitStack() as stack:
        server = Server(kind, LASTING).start()
        stack.callback(server.stop)
        environment = {
            "OUTBOX_TEST_DATABASE": json.dumps(database),
            "OUTBOX_TEST_DELAYQ": json.dumps(
                {
                    "CONNECTION": server.socket_url,
                    "QUEUES": {QUEUE: {}, "default": {}},
                    # A job may be unlucky often; leases of the killed end soon.
                    "WORKER": {
                        "PROCESSES": 2,
                        "THREADS": 4,
                        "MAX_KILLS": 1000,
                        "LEASE": 3,
                    },
                }
            ),
            "WORKER_TEST_SETTINGS": "tests.outbox.project.settings",
        }
        _manage(environment, "migrate", "--run-syncdb", "--verbosity=0")
        site = _Site(orders, environment)
        stack.callback(site.end)
        worker = _start_worker(directory, environment)
        stack.callback(lambda: worker.destroy())
        outcome = Outcome()
        victims = ["site", "process", "worker", "server"]
        while (
            site.is_at_work
            or min(map(outcome.kills.__getitem__, victims)) < least_kills
        ):
            # What is killed, and when, is the point: nothing is awaited here.
            time.sleep(chance.uniform(0.3, 1.0) * pause_s)
            victim = chance.choice(victims)
            if victim == "site" and not site.is_at_work:
                # All orders are there: it makes some more, so that it can be killed at it.
                site.orders += 50
                site.start()
                continue
            outcome.kills[victim] += 1
            if victim == "site":
                site.kill()
                site.start()
            elif victim == "process":
                for pid in children_of(worker.pid):
                    kill(pid, signal.SIGKILL)
            elif victim == "worker":
                worker.destroy()
                worker = _start_worker(directory, environment)
            else:
                server.kill()
                time.sleep(chance.uniform(0.0, pause_s))
                server.start()
            site.check()
        site.wait()

        def is_over() -> bool:
            told = _look(environment)
            return told["rows"] == 0 and told["effects"] >= told["orders"]

        try:
            wait_until(is_over, description="all is done", timeout=PATIENCE_S)
        except AssertionError:
            # What is missing is said below.
            print(worker.log[-4_000:], file=sys.stderr)
        told = _look(environment, "all")
        effects = Counter(told["effects"])
        committed = set(told["orders"])
        outcome.orders = len(committed)
        outcome.rows = told["rows"]
        outcome.lost = sorted(committed - set(effects))
        outcome.doubled = sorted(pk for pk, count in effects.items() if count > 1)
        outcome.orphans = sorted(set(effects) - committed)
        outcome.took_s = time.monotonic() - begun
        return outcome


class _Site:
    """The site's process."""

    def __init__(self, orders: int, environment: dict[str, str]) -> None:
        self.orders = orders
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def is_at_work(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = forked.Popen(
            [sys.executable, "-m", "tests.outbox.project.site", str(self.orders)],
            cwd=ROOT,
            env={
                **os.environ,
                **self._environment,
                "DJANGO_SETTINGS_MODULE": "tests.outbox.project.settings",
            },
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Make sure that it has not failed by itself."""
        assert self._process is not None
        assert self._process.poll() in (None, 0), "the site has failed"

    def wait(self) -> None:
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, "the site has failed"

    def end(self) -> None:
        if self.is_at_work:
            self.kill()


def _start_worker(directory: Path, environment: dict[str, str]) -> WorkerProgram:
    return WorkerProgram(
        "--queue=default", directory=directory, environment=environment
    ).start()


def _manage(environment: dict[str, str], *arguments: str) -> None:
    forked.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            **environment,
            "DJANGO_SETTINGS_MODULE": "tests.outbox.project.settings",
        },
        check=True,
    )


def _look(environment: dict[str, str], what: str = "counts") -> dict[str, Any]:
    """Ask the database, in a process of its own: this one may have other settings."""
    told = forked.run(
        [sys.executable, "-m", "tests.outbox.project.look", what],
        cwd=ROOT,
        env={
            **os.environ,
            **environment,
            "DJANGO_SETTINGS_MODULE": "tests.outbox.project.settings",
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def sqlite_entry(directory: Path) -> dict[str, Any]:
    """Return the entry for DATABASES of a SQLite that several processes write to."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(directory / "orders.sqlite3"),
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.outbox.proof", description=__doc__
    )
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--orders", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--server", default=available_kinds()[0])
    options = parser.parse_args()
    is_good = True
    for name in options.database or ("sqlite", "postgres"):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            directory = Path(folder)
            if name == "postgres":
                cluster = Postgres().start()
                stack.callback(cluster.stop)
                entry = cluster.make_database()
            else:
                entry = sqlite_entry(directory)
            outcome = prove(
                entry,
                orders=options.orders,
                directory=directory,
                seed=options.seed,
                kind=options.server,
            )
            is_good = is_good and outcome.is_good
            killed = ", ".join(f"{n} {what}" for what, n in outcome.kills.items())
            print(
                f"{name}: {outcome.orders:,} orders, killed: {killed}; lost {len(outcome.lost)}, doubled"
                f" {len(outcome.doubled)}, without an order {len(outcome.orphans)}, rows left {outcome.rows};"
                f" {outcome.took_s:.0f} s, --seed {options.seed}",
                flush=True,
            )
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
