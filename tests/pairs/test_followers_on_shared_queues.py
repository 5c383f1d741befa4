"""A job that follows another on a queue with REDISSON keeps what it was prepared with, as one that is scheduled there."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import DelayedTask, Limit, delayed_task, pause, schedule
from django_delayq.core.keys import DeliveryKeys
from django_delayq.testing import frozen_queue
from django_delayq.testing.frozen import FrozenQueue
from tests.pairs.touching import NOON

JAVA = "java"


@pytest.fixture
def q(settings: Any) -> Iterator[FrozenQueue]:
    settings.DELAYQ = {"QUEUES": {"default": {}, JAVA: {"REDISSON": "3.52.0"}}}
    with frozen_queue(now=NOON, leave_due=True) as q:
        yield q


def task(name: str, **options: Any) -> DelayedTask[..., Any]:
    def run(n: int = 0) -> None:
        pass

    return delayed_task(name=f"tests.pairs.{name}", **options)(run)


def follow(q: FrozenQueue, of: DelayedTask[..., Any], delay: float) -> Any:
    """Have a job follow one that has just ended."""
    follower = of.prepare(delay)
    schedule(task("first").prepare(0).then(follower))
    q.run_due()
    return follower


@pytest.mark.parametrize("follows", [True, False])
def test_job_that_is_too_late_has_lost_its_key(q: FrozenQueue, follows: bool) -> None:
    pause(JAVA)
    of = task("late", queue=JAVA, unique=True, expires=60)
    late = follow(q, of, 0) if follows else of.schedule(0)
    q.advance(minutes=2)

    job = of.schedule(0)

    assert job.created
    assert job.id != late.id


@pytest.mark.parametrize("follows", [True, False])
def test_job_has_its_limit(q: FrozenQueue, follows: bool) -> None:
    of = task("limited", queue=JAVA, limit=Limit("tests-shared", concurrency=1))
    job = follow(q, of, 60) if follows else of.schedule(60)

    locators = q.server.keyspace.keys[DeliveryKeys.of(JAVA).locators.encode()]

    assert b"tests-shared\0" in locators[job.id.rpartition(":")[2].encode()]
