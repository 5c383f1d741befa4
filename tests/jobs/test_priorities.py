"""Priorities and histories of jobs, as projects use them."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_delayq import (
    InvalidTask,
    QueueNotFound,
    State,
    aschedule,
    aschedule_many,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.core import store as store_calls
from django_delayq.jobs.options import TaskOptions
from django_delayq.jobs.store_calls import written
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand


def on(queue: str, priority: int = 0) -> Any:
    return samples.add.using(queue=queue, priority=priority)


def scheduled(task: Any) -> Any:
    return schedule(task, 0, 1, 2)


def scheduled_async(task: Any) -> Any:
    return async_to_sync(aschedule)(task, 0, 1, 2)


def scheduled_many(task: Any) -> Any:
    return schedule_many([task.prepare(0, 1, 2)])[0]


def scheduled_many_async(task: Any) -> Any:
    return async_to_sync(aschedule_many)([task.prepare(0, 1, 2)])[0]


WAYS = [scheduled, scheduled_async, scheduled_many, scheduled_many_async]


@pytest.mark.parametrize("way", WAYS)
def test_urgent_job_is_taken_first_however_it_was_scheduled(
    queue: str, hand: Hand, way: Any
) -> None:
    low = way(on(queue, -100))
    normal = way(on(queue))
    high = way(on(queue, 100))

    assert [get_job(job.id).priority for job in (low, normal, high)] == [-100, 0, 100]
    assert high.priority == 100
    hand.wait_until_due(3)
    assert [hand.take().token for _ in range(3)] == [
        high.token,
        normal.token,
        low.token,
    ]


@pytest.mark.parametrize("way", WAYS)
def test_job_without_a_priority_is_ranked_at_once_where_another_has_one(
    queue: str, hand: Hand, way: Any
) -> None:
    way(on(queue))
    assert not hand.client.exists(hand.keys.ranked)
    # Another process, so nobody can tell this one.
    other = on(queue, 1).prepare(LATER, 1, 2)
    hand.run(
        store_calls.schedule(store_calls.Target(hand.keys), written([other.draft])[0])
    )

    way(on(queue))

    assert hand.client.zcard(hand.keys.ranked) == 2


def test_job_is_reprioritized(queue: str, hand: Hand) -> None:
    job = schedule(on(queue), LATER, 1, 2)

    assert job.reprioritize(7) is True
    assert (job.priority, get_job(job.id).priority) == (7, 7)
    assert async_to_sync(job.areprioritize)(-7) is True
    assert get_job(job.id).priority == -7

    job.run_now()
    hand.take()
    assert job.reprioritize(1) is False
    assert job.state is State.RUNNING


@pytest.mark.django_db(transaction=True)
def test_job_that_waits_for_its_commit_is_reprioritized(queue: str, hand: Hand) -> None:
    from django.db import transaction

    with transaction.atomic():
        job = on(queue).using(on_commit=True).schedule(LATER, 1, 2)
        assert job.reprioritize(9) is True

    assert get_job(job.id).priority == 9


@pytest.mark.parametrize(
    "priority", [101, -101, 0.5, True, "high", None, timedelta(1), float("nan"), 10**30]
)
def test_what_is_no_priority_is_refused_where_it_is_written(
    queue: str, hand: Hand, priority: Any
) -> None:
    wanted = r"priority=.*: give a whole number from -100 to 100"
    with pytest.raises(InvalidTask, match=wanted):
        TaskOptions(priority=priority)
    with pytest.raises(InvalidTask, match=wanted):
        on(queue, priority)
    with pytest.raises(InvalidTask, match=wanted):

        @delayed_task(priority=priority)
        def never() -> None: ...

    job = schedule(on(queue), LATER, 1, 2)
    with pytest.raises(InvalidTask, match=wanted):
        job.reprioritize(priority)
    assert get_job(job.id).priority == 0


def test_shared_queue_has_no_priorities(settings: Any, queue: str) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {queue: {"REDISSON": "3.27.2", "CODEC": "StringCodec"}},
    }
    with pytest.raises(
        InvalidTask, match="is shared with Redisson, which has no priorities"
    ):
        schedule(on(queue, 1), LATER, 1, 2)

    job = schedule(on(queue), LATER, 1, 2)
    with pytest.raises(
        InvalidTask, match="is shared with Redisson, which has no priorities"
    ):
        job.reprioritize(1)
    assert job.refresh() is State.SCHEDULED


def test_unknown_queue_is_named_before_its_priority_is_looked_at() -> None:
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        schedule(on("nowhere", 1), LATER, 1, 2)


def test_step_of_a_queue_reaches_its_worker_in_ms(settings: Any, queue: str) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {queue: {"PRIORITY_STEP": 0.5}, "strict": {}},
    }
    queues = get_settings().queues

    assert queues[queue].priority_step_ms == 500
    assert queues["strict"].priority_step_ms is None


def test_history_has_every_attempt(queue: str, hand: Hand) -> None:
    job = schedule(on(queue), 0, 1, 2)
    for _ in range(2):
        hand.retry(hand.take(), 0)

    job.refresh()

    assert [each["error"] for each in job.history] == ["ValueError: no"] * 2
    assert job.attempts == 2
    assert schedule(on(queue), 0, 1, 2).history == ()
