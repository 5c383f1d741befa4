"""Sentinels and clusters that speak TLS alone, to us and among themselves: their failovers, and what is wrong there."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError

from django_delayq import aschedule, get_job, schedule
from tests.clusters import TestCluster
from tests.conftest import skip_old_redis_py
from tests.polling import wait_until
from tests.sentinels import Watched
from tests.tls import KIND, Tls
from tests.worker.project import tasks
from tests.worker.test_connections import LATER, Over, over, serve

__all__ = ["over", "serve"]


@pytest.fixture
def tls_watched(tls: Tls) -> Iterator[Watched]:
    with Watched(KIND, tls=tls) as watched:
        yield watched


@pytest.fixture
def tls_cluster(tls: Tls) -> Iterator[Callable[..., TestCluster]]:
    """Start a cluster; options are those of `TestCluster`, and ``names`` of the certificates of its nodes."""
    skip_old_redis_py()
    started: list[TestCluster] = []

    def start(names: tuple[str, ...] = (), **options: Any) -> TestCluster:
        cluster = TestCluster(KIND, tls=tls, **options)
        started.append(cluster)
        for node, name in zip(cluster.nodes, names, strict=False):
            node.options |= tls.options(name)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.stop()


def check_that_work_goes_on(
    over: Over, program: Any, records: Any, *, replicas: int, fail_over: Any
) -> None:
    """Have a worker program run jobs before and after a failover, with jobs that were stored before it."""
    note = tasks.note.using(queue=over.name)
    worker = program("--queue", over.name, "--processes", "1").wait_for_processes()

    def have_run(jobs: list[str]) -> None:
        wait_until(
            lambda: set(jobs) <= set(records.jobs("run")),
            description=f"{jobs} have run; the worker's log: {worker.log}",
        )

    have_run([schedule(note, 0).id, asyncio.run(aschedule(note, 0)).id])
    kept = schedule(note.using(durable=replicas), LATER)

    fail_over()

    after: list[str] = []

    def again() -> bool:
        try:
            after.append(schedule(note, 0).id)
            after.append(asyncio.run(aschedule(note, 0)).id)
        except RedisError:
            return False
        return True

    wait_until(again, description="the new primary stores jobs")
    assert kept.state == "scheduled"
    kept.run_now()
    have_run([kept.id, *after])
    wait_until(lambda: get_job(kept.id).state == "succeeded", description="it is told")
    assert worker.stop() == 0


def test_work_goes_on_after_a_failover_of_sentinels(
    tls_watched: Watched, over: Over, program: Any, records: Any
) -> None:
    over.use(tls_watched.url)
    old = tls_watched.primary

    check_that_work_goes_on(
        over,
        program,
        records,
        replicas=2,
        fail_over=lambda: tls_watched.fail_over("kill"),
    )

    assert tls_watched.primary is not old


def test_work_goes_on_after_a_failover_of_a_cluster(
    tls_cluster: Any, over: Over, program: Any, records: Any
) -> None:
    cluster = tls_cluster()
    over.use(cluster.url)
    old = cluster.holder_of(over.name)

    check_that_work_goes_on(over, program, records, replicas=1, fail_over=old.kill)

    assert cluster.holder_of(over.name) is not old
