"""Each pair that is refused raises its error at the earliest moment."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

import django_delayq
from django_delayq import (
    Batch,
    DelayedTask,
    delayed_task,
    every,
    periodic,
    schedule,
    store_schedule,
)
from django_delayq.jobs import outbox
from django_delayq.outbox.models import OutboxRow
from django_delayq.outbox.part import OutboxPart
from django_delayq.outbox.relay import Relay
from django_delayq.testing import frozen_queue
from django_delayq.testing.frozen import FrozenQueue, Ran
from tests.pairs.features import FEATURES, REFUSED, Pair

REDISSON = "java"
LIMITS = ["limit of a task", "limit of a key", "rate of a task"]
UNIQUE = [name for name in FEATURES if name.startswith("unique")]
CHANGING = ["unique, replace", "unique, postpone", "unique, sooner"]
SCHEDULES = ["catch_up none", "catch_up one", "catch_up all", "overlap=False"]


@pytest.fixture(autouse=True)
def _queues(settings: Any) -> None:
    settings.DELAYQ = {"QUEUES": {"default": {}, REDISSON: {"REDISSON": "3.52.0"}}}


def task(name: str = "refused", **options: Any) -> DelayedTask[..., Any]:
    def run(key: str = "") -> None:
        pass

    return delayed_task(name=f"tests.pairs.{name}", **options)(run)


def follow(first: Any, what: str, follower: Any) -> None:
    first.then(follower) if what == "then" else first.on_dead(follower)


#: By pair, the ways to ask for both.
ATTEMPTS: dict[Pair, list[Callable[[], Any]]] = {}


def attempt(one: str, other: str, *calls: Callable[[], Any]) -> None:
    ATTEMPTS[frozenset({one, other})] = list(calls)


for schedule_name in SCHEDULES:
    own = FEATURES[schedule_name].schedule
    for unique in UNIQUE:
        of = FEATURES[unique].task
        attempt(
            unique,
            schedule_name,
            lambda own=own, of=of: periodic(every(60), **own)(task(**of)),
            lambda own=own, of=of: store_schedule("a", task(**of), every(60), **own),
        )
    attempt(
        "outbox",
        schedule_name,
        lambda own=own: periodic(every(60), outbox=True, **own),
        lambda own=own: store_schedule("a", task(), every(60), outbox=True, **own),
    )
for limit_name in LIMITS:
    of = FEATURES[limit_name].task
    attempt(
        limit_name,
        "overlap=False",
        lambda of=of: periodic(every(60), overlap=False)(task(**of)),
        lambda of=of: store_schedule("a", task(**of), every(60), overlap=False),
    )
attempt(
    "REDISSON",
    "priority",
    lambda: task(queue=REDISSON, priority=1).prepare(0),
    lambda: task(queue=REDISSON).using(priority=1).prepare(0),
)
attempt("REDISSON", "encrypt", lambda: task(queue=REDISSON, encrypt=True).prepare(0))
attempt("REDISSON", "batch", lambda: Batch(task(queue=REDISSON).prepare(0)))
for follow_name in ("then", "on_dead"):
    attempt(
        "REDISSON",
        follow_name,
        lambda name=follow_name: follow(
            task(queue=REDISSON).prepare(0), name, task("next").prepare(0)
        ),
    )
for unique in CHANGING:
    of = FEATURES[unique].task
    attempt(
        unique,
        "outbox",
        lambda of=of: task(outbox=True, **of),
        lambda of=of: task(**of).using(outbox=True),
    )
    for follow_name in ("then", "on_dead"):
        attempt(
            unique,
            follow_name,
            lambda of=of, name=follow_name: follow(
                task(**of).prepare(0), name, task("next").prepare(0)
            ),
            lambda of=of, name=follow_name: follow(
                task("first").prepare(0), name, task(**of).prepare(0)
            ),
        )
    attempt(
        unique,
        "batch",
        lambda of=of: Batch(task().prepare(0)).schedule(
            [task("in batch", **of).prepare(0)]
        ),
    )


def test_every_refused_pair_is_tried() -> None:
    assert ATTEMPTS.keys() == REFUSED.keys()


@pytest.mark.parametrize(
    ("pair", "call"),
    [
        pytest.param(pair, call, id=f"{' + '.join(sorted(pair))} {i}")
        for pair, calls in ATTEMPTS.items()
        for i, call in enumerate(calls)
    ],
)
def test_pair_is_refused(pair: Pair, call: Callable[[], Any]) -> None:
    refusal = REFUSED[pair]

    with pytest.raises(
        getattr(django_delayq, refusal.error), match=re.escape(refusal.message)
    ):
        call()


def test_options_about_the_caller_are_no_options_of_a_schedule() -> None:
    for options in ({"on_commit": True}, {"durable": 1}):
        (name,) = options

        with pytest.raises(django_delayq.InvalidTask, match=f"^{name}="):
            periodic(every(60), **options)

    of_task = task(outbox=True, durable=1)
    assert periodic(every(60), outbox=False, durable=False)(of_task) is of_task


def test_callback_of_a_batch_cannot_be_unique() -> None:
    with pytest.raises(django_delayq.InvalidTask, match="its task has unique="):
        Batch(task(unique=True).prepare(0))


# How some of these meet all the same.


@pytest.fixture
def q(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenQueue]:
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    with frozen_queue(leave_due=True) as q:
        yield q


def arguments(ran: list[Ran]) -> list[tuple[str, list[Any]]]:
    return [(each.task, each.args) for each in ran]


@pytest.mark.parametrize("on_duplicate", ["replace", "postpone", "sooner"])
def test_changed_job_is_still_followed(q: FrozenQueue, on_duplicate: Any) -> None:
    of, last = task("first", unique=("key",)), task("last")
    first = of.prepare(60, "a")
    schedule(first.then(last.prepare(0)).on_dead(last.prepare(0, "dead")))

    changed = of.using(on_duplicate=on_duplicate).schedule(90, "a")

    assert changed.id == first.id
    assert arguments(q.advance(minutes=2)) == [(of.name, ["a"]), (last.name, [])]


@pytest.mark.parametrize("on_duplicate", ["replace", "postpone", "sooner"])
def test_changed_job_stays_in_its_batch(q: FrozenQueue, on_duplicate: Any) -> None:
    of, last = task("first", unique=("key",)), task("last")
    batch = Batch(last.prepare(0))
    batch.schedule([of.prepare(60, "a")])

    assert not of.using(on_duplicate=on_duplicate).schedule(90, "a").created

    assert batch.left() == 1
    assert arguments(q.advance(minutes=2)) == [(of.name, ["a"]), (last.name, [])]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("on_duplicate", ["replace", "postpone", "sooner"])
def test_job_of_the_outbox_is_changed_for_good(
    q: FrozenQueue, on_duplicate: Any
) -> None:
    of = task("first", unique=("key",))
    with transaction.atomic():
        job = of.using(outbox=True).schedule(60, "a")
    row = OutboxRow.objects.get()

    changed = of.using(on_duplicate=on_duplicate).schedule(30, "a")
    # Somebody sends the row again, and so does a worker.
    row.save(force_insert=not OutboxRow.objects.exists())
    for _ in Relay("default").sweep(fresh_ms=0, by_hand=True):
        pass

    assert changed.id == job.id
    wait_s = 30 if on_duplicate == "sooner" else 60
    assert q.advance(seconds=wait_s - 1) == []
    assert len(q.advance(minutes=5)) == 1
