"""Every option holds from the first call on: it stores the same on a queue that no worker has served."""

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgspec
import pytest
import redis
from asgiref.sync import async_to_sync
from django.db import transaction

from django_delayq import (
    Backoff,
    Batch,
    Job,
    Limit,
    aschedule,
    aschedule_many,
    delayed_task,
    every,
    get_job,
    periodic,
    schedule,
    schedule_many,
    store_schedule,
)
from django_delayq.conf import get_settings
from django_delayq.features.schedules.worker import SchedulesOfQueue
from django_delayq.jobs import registry
from django_delayq.jobs.options import TaskOptions
from django_delayq.transport.clients import own_clients
from django_delayq.worker.upkeep import Upkeep
from tests.backend import samples as django_tasks
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.signed import opened
from tests.worker.workers import part_of

#: Bytes of a locator before its tail.
TAIL_AT = 21
LIMIT = Limit("of-first-calls", concurrency=1, key=lambda a, *_: str(a))
HOURLY = every(3_600)

#: By option: the options of the task.
OPTIONS: dict[str, dict[str, Any]] = {
    "encrypt": {"encrypt": True},
    "max_attempts": {"max_attempts": 2},
    "backoff": {"backoff": Backoff(base=2)},
    "time_limit": {"time_limit": 5},
    "unique": {"unique": True},
    "unique_until": {"unique": True, "unique_until": "start"},
    "on_duplicate": {"unique": True, "on_duplicate": "replace"},
    "max_wait": {"unique": True, "on_duplicate": "postpone", "max_wait": 60},
    "expires": {"expires": 60},
    "on_expiry": {"expires": 60, "on_expiry": "dead"},
    "priority": {"priority": 7},
    "limit": {"limit": LIMIT},
    "keep_result": {"keep_result": 60},
    "spread": {"spread": 60},
}
#: What a worker reads from the code: nothing of it is stored.
OF_CODE = {"retry_on", "no_retry_on", "sensitive", "once"}
#: Of these, other tests are about the first call: here, of `outbox` and of `durable`, whose queues nobody serves.
ELSEWHERE = {"queue", "on_commit", "outbox", "durable"}


def scheduled(task: Any) -> Job[Any]:
    return schedule(task, LATER, 1, 2)


def scheduled_async(task: Any) -> Job[Any]:
    return async_to_sync(aschedule)(task, LATER, 1, 2)


def scheduled_many(task: Any) -> Job[Any]:
    return schedule_many([task.prepare(LATER, 1, 2)])[0]


def scheduled_many_async(task: Any) -> Job[Any]:
    return async_to_sync(aschedule_many)([task.prepare(LATER, 1, 2)])[0]


def committed(task: Any) -> Job[Any]:
    with transaction.atomic():
        return task.using(on_commit=True).schedule(LATER, 1, 2)


WAYS = [scheduled, scheduled_async, scheduled_many, scheduled_many_async, committed]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other test see the tasks of this one."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


@pytest.fixture
def served(client: "redis.Redis[bytes]", queue: str) -> Hand:
    """A queue that a worker has served, beside the one that none has."""
    hand = Hand(client, f"{queue}-2")
    settings = get_settings().queue(f"{queue}-2")
    upkeep = Upkeep(own_clients.of_thread(), settings, os.urandom(8))
    upkeep.begin()
    hand.claim()
    upkeep.turn(0.0)
    return hand


def define(**options: Any) -> Any:
    @delayed_task(name="tests.first_call", **options)
    def first(a: int, b: int = 0) -> None: ...

    return first


def stored(hand: Hand, job: Job[Any]) -> dict[str, Any]:
    """Return what the server has of a job, without what differs between any two."""
    locator: Any = hand.client.hget(hand.keys.locators, job.token)
    found, tail = get_job(job.id), locator[TAIL_AT:]
    call = msgspec.to_builtins(opened(hand.payload(job), hand.keys.queue.name))
    return {
        "call": call,
        "priority": found.priority,
        "unique": found.unique,
        # Behind its first bytes, a moment may stand in it.
        "tail": (len(tail), tail[:3], LIMIT.name.encode() in tail),
        "is_ranked": hand.client.zscore(hand.keys.ranked, job.token) is not None,
        "holds_its_key": job.token.encode() in hand.client.hvals(hand.keys.unique),
    }


def test_every_option_is_here() -> None:
    known = {item.name for item in fields(TaskOptions)}

    assert known == {*OPTIONS, *OF_CODE, *ELSEWHERE}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", OPTIONS)
def test_first_call_stores_what_a_later_one_does(
    queue: str, hand: Hand, served: Hand, option: str, way: Callable[[Any], Job[Any]]
) -> None:
    task = define(**OPTIONS[option])

    first = way(task.using(queue=queue))
    later = way(task.using(queue=f"{queue}-2"))

    found = stored(hand, first)
    assert found == stored(served, later)
    assert found["priority"] == (7 if option == "priority" else 0)
    assert found["is_ranked"] == (option == "priority")
    assert found["tail"][2] == (option == "limit")
    assert found["holds_its_key"] == ("unique" in OPTIONS[option])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        (option, given[option])
        for option, given in OPTIONS.items()
        if option in TaskOptions.CARRIED or option == "priority"
    ],
)
def test_option_of_one_call_holds_from_the_first_on(
    queue: str,
    hand: Hand,
    served: Hand,
    option: str,
    value: Any,
    way: Callable[[Any], Job[Any]],
) -> None:
    task = define().using(**{option: value})

    first = way(task.using(queue=queue))
    later = way(task.using(queue=f"{queue}-2"))

    found = stored(hand, first)
    assert found == stored(served, later)
    assert (found["priority"] == 7) or option in found["call"]["options"]


def test_priority_of_a_django_task_holds_from_the_first_call_on(queue: str) -> None:
    result = django_tasks.add.using(queue_name=queue, priority=7).enqueue(1)

    assert get_job(result.id).priority == 7
    assert result.task.priority == 7


def test_batch_and_its_callback_keep_their_options_from_the_first_call_on(
    queue: str, hand: Hand
) -> None:
    urgent = define(priority=7, limit=LIMIT).using(queue=queue)
    callback = urgent.prepare(0, 1)
    batch = Batch(callback)

    (member,) = batch.schedule([urgent.prepare(LATER, 1)])

    assert get_job(callback.id).priority == 7
    assert b"of-first-calls" in hand.client.hget(hand.keys.headers, callback.token)
    found = stored(hand, member)
    assert (found["priority"], found["tail"][2]) == (7, True)
    assert found["call"]["batch"] == callback.token
    assert batch.left() == 1


@pytest.mark.parametrize("name", ["then", "on_dead"])
def test_what_follows_the_first_job_keeps_its_options(
    queue: str, hand: Hand, name: str
) -> None:
    urgent = define(priority=7, limit=LIMIT).using(queue=queue)
    job = samples.add.using(queue=queue).prepare(LATER, 1)

    getattr(job, name)(urgent.prepare(0, 1))
    schedule(job)

    follow = stored(hand, job)["call"]["follow"]
    (follower,) = follow["then" if name == "then" else "dead"]
    assert (follower["priority"], follower["limit"]) == (7, "of-first-calls\x001")


def test_stored_schedule_keeps_its_options_from_the_first_call_on(
    queue: str, hand: Hand
) -> None:
    task = define(limit=LIMIT)

    found = store_schedule("first", task, HOURLY, queue=queue, args=[1], priority=7)

    (token,) = hand.tokens()
    locator: Any = hand.client.hget(hand.keys.locators, token)
    assert get_job(f"{queue}:{token}").priority == 7
    assert b"of-first-calls" in locator
    assert hand.client.zscore(hand.keys.ranked, token) is not None
    fired = found.fire()
    assert get_job(fired.id).priority == 7


def test_schedule_in_code_keeps_its_options_from_the_first_job_on(
    queue: str, hand: Hand
) -> None:
    periodic(HOURLY, queue=queue, args=[1], priority=7)(define(limit=LIMIT))

    part_of(
        SchedulesOfQueue, own_clients.of_thread(), get_settings().queue(queue)
    ).turn(1.0, None)

    (token,) = hand.tokens()
    assert get_job(f"{queue}:{token}").priority == 7
    locator: Any = hand.client.hget(hand.keys.locators, token)
    assert b"of-first-calls" in locator
