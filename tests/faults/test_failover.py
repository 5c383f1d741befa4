"""Workers and failovers: what was stored on all servers runs, and the service is back once there is a new primary."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis

from django_delayq import conf, schedule
from django_delayq.exceptions import MaybeScheduled
from tests.faults.ledger import Ledger
from tests.polling import wait_until
from tests.sentinels import Watched
from tests.worker.project import tasks
from tests.worker.records import Records
from tests.worker.workers import WorkerProgram, counts

#: Of the load, jobs a second.
RATE = 500
#: A replica is behind by less than this, s.
BEHIND_S = 1.0


@pytest.fixture
def worker(
    watched: Watched,
    use: Any,
    program: Callable[..., WorkerProgram],
    queue_name: str,
) -> Iterator[WorkerProgram]:
    """A worker of two processes, led by Sentinels; the jobs of the test go to the same server."""
    use(watched.url, LEASE=20)
    yield program("--queue", queue_name, "--processes", "2").wait_for_processes()
    conf.forget_connections()


class Load:
    """Schedules jobs at a steady rate, and notes those that are stored by what it was told."""

    def __init__(self, queue_name: str) -> None:
        self.stored: dict[str, float] = {}
        self.errors: list[tuple[float, Exception]] = []
        self._task = tasks.note.using(queue=queue_name)
        self._is_over = threading.Event()
        # Each is often waiting for a reply.
        self._threads = [threading.Thread(target=self._schedule) for _ in range(4)]
        self._pause_s = len(self._threads) / RATE

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _schedule(self) -> None:
        next_s = time.monotonic()
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            # What a failure held up is not made up for.
            next_s = max(next_s, time.monotonic() - 0.1) + self._pause_s
            try:
                job = schedule(self._task, 0.1)
            except (redis.RedisError, MaybeScheduled) as error:
                self.errors.append((time.time(), error))
            else:
                self.stored[job.id] = time.time()


class Failover(NamedTuple):
    """One failover; times by this machine's clock, s."""

    how: str
    failed: float
    switched: float


@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_job_on_every_server_runs_after_a_failover(
    watched: Watched, worker: WorkerProgram, ledger: Ledger, queue_name: str, how: str
) -> None:
    task = tasks.note.using(queue=queue_name)
    ledger.schedule(task, 0)
    ledger.wait_for_starts(1)
    for _ in range(20):
        ledger.schedule(task, 3)
    client = watched.client(watched.primary)
    # WAIT counts from the last write of its own connection.
    client.incr("mark")
    wait_until(lambda: client.wait(2, 500) == 2, description="both have all")

    watched.fail_over(how)
    ledger.schedule(task, 0)

    runs = ledger.wait_for_starts(22)
    assert {run.job for run in runs} == set(ledger.scheduled)
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("DELAYQ_TEST_IDLE") != "1",
    reason="where the processors are busy, replicas may be behind by seconds",
)
def test_under_load_only_what_no_replica_has_is_lost(
    watched: Watched, worker: WorkerProgram, records: Records, queue_name: str
) -> None:
    failovers = []
    switches = watched.switches()
    with Load(queue_name) as load:
        for how in ("kill", "suspend", "kill"):
            before = len(load.stored)
            wait_until(
                lambda before=before: len(load.stored) > before + 2 * RATE,
                description="jobs are stored",
            )
            old = watched.primary
            failed = time.time()
            getattr(old, how)()
            watched.wait_for_switch(old)
            failovers.append(Failover(how, failed, time.time()))
            wait_until(
                lambda: max(load.stored.values()) > failovers[-1].switched,
                description="a job is stored after the switch",
            )
            watched.heal()

    # A lease that nobody holds any more is over after 20 s.
    wait_until(
        lambda: counts(queue_name).jobs == 0, description="nothing waits or runs"
    )
    print(*_report(load, records, failovers), sep="\n")
    # The Sentinels made no other failover, which would lose a tail of its own.
    assert watched.switches() == switches + len(failovers)
    assert _unexplained(load, records, failovers) == set()
    assert worker.stop() == 0


def _lost(load: Load, records: Records) -> set[str]:
    return set(load.stored) - set(records.jobs("run"))


def _unexplained(load: Load, records: Records, failovers: list[Failover]) -> set[str]:
    """Return the jobs that have not run, and were stored long enough before any failure."""
    return {
        job
        for job in _lost(load, records)
        if not any(
            failover.failed - BEHIND_S < load.stored[job] < failover.switched
            for failover in failovers
        )
    }


def _report(load: Load, records: Records, failovers: list[Failover]) -> Iterator[str]:
    starts = sorted(line["at_ms"] / 1000 for line in records.all("run"))
    stored = sorted(load.stored.values())
    yield (
        f"stored {len(stored)}, errors {len(load.errors)}, runs {len(starts)},"
        f" lost {len(_lost(load, records))}"
    )
    for failover in failovers:
        back = [
            next((at for at in times if at > failover.switched), failover.switched)
            - failover.switched
            for times in (stored, starts)
        ]
        yield (
            f"{failover.how}: switched after {failover.switched - failover.failed:.2f} s,"
            f" stored again {back[0]:.3f} s later, run again {back[1]:.3f} s later"
        )
