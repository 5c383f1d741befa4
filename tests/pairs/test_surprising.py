"""Each sentence of docs/pairs.md about a pair in the model holds, in the simplest case."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    Backoff,
    Batch,
    BlockingQueue,
    DelayedTask,
    Limit,
    QueueFull,
    State,
    current_job,
    delayed_task,
    every,
    find_jobs,
    pause,
    periodic,
    resume,
    schedule,
)
from django_delayq.jobs import outbox, prepare
from django_delayq.outbox import inbox
from django_delayq.outbox.part import OutboxPart
from django_delayq.testing import frozen_queue
from django_delayq.testing.frozen import FrozenQueue, Ran
from tests.pairs.features import SURPRISING, Pair
from tests.pairs.scenes import hold_up, let_go, pass_by, showing
from tests.pairs.touching import NOON

BACKOFF = Backoff(base=30, factor=1, jitter=0)
SHOWN: dict[Pair, Callable[..., None]] = {}


shows = showing(SHOWN)


def test_every_sentence_is_shown() -> None:
    assert SHOWN.keys() == SURPRISING.keys()


@pytest.fixture
def q(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenQueue]:
    settings.DELAYQ = {
        "QUEUES": {
            "default": {},
            "full": {"MAX_JOBS": 1},
            "java": {"REDISSON": "3.52.0"},
        },
        "OUTBOX_KEEP": 0,
    }
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    with frozen_queue(now=NOON, leave_due=True, periodic=True) as q:
        yield q


def task(name: str = "surprising", **options: Any) -> DelayedTask[..., Any]:
    """Make a task that fails as often as its first argument says."""

    def run_it(failures: int = 0, other: str = "") -> None:
        job = current_job()
        assert job is not None
        if job.attempts < failures:
            raise ValueError("not yet")

    options = {"backoff": BACKOFF, **options}
    return delayed_task(name=f"tests.pairs.{name}", **options)(run_it)


def ids(ran: list[Ran]) -> list[str]:
    return [each.id for each in ran]


def outcomes(ran: list[Ran]) -> list[str]:
    return [each.outcome for each in ran]


@shows("priority", "limit of a task")
def test_limit_admits_by_priority(q: FrozenQueue) -> None:
    of = task(limit=Limit("tests-surprising", concurrency=1))
    of.schedule(0)
    leased = hold_up(q)
    low = of.using(priority=-5).schedule(0)
    high = of.using(priority=5).schedule(1)
    assert q.advance(seconds=2) == []
    assert {low.refresh(), high.refresh()} == {State.HELD}

    let_go(q, leased)

    assert ids(q.advance(seconds=10)) == [high.id, low.id]


@shows("priority", "retry")
def test_retry_keeps_its_priority(q: FrozenQueue) -> None:
    high = task(priority=5).schedule(0, 1)
    q.run_due()
    other = task("other").schedule(29)
    pass_by(q, seconds=31)

    assert ids(q.run_due()) == [high.id, other.id]


@shows("unique, keep", "retry")
def test_job_holds_its_key_between_attempts(q: FrozenQueue) -> None:
    of = task(unique=("other",))
    job = of.schedule(0, 1)
    q.run_due()

    again = of.schedule(0, 0)

    assert not again.created
    assert again.id == job.id
    assert again.state is State.RETRYING


@shows("unique until start", "retry")
def test_retry_has_no_key(q: FrozenQueue) -> None:
    of = task(unique=("other",), unique_until="start")
    of.schedule(0, 1)
    q.run_due()

    assert of.schedule(30, 0).created
    assert outcomes(q.advance(minutes=1)) == ["succeeded", "succeeded"]


@shows("unique, replace", "retry")
def test_replaced_job_has_all_its_attempts(q: FrozenQueue) -> None:
    of = task(unique=("other",), on_duplicate="replace", max_attempts=2)
    of.schedule(0, 2)
    q.run_due()

    job = of.schedule(0, 1)

    assert job.replaced
    assert outcomes(q.advance(minutes=5)) == ["retrying", "succeeded"]


@shows("unique, replace", "once")
@pytest.mark.django_db(transaction=True)
def test_new_arguments_run_once_more(
    q: FrozenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def note(n: int, key: str) -> None:
        done.append(n)

    def run_and_fail(*args: Any) -> Any:
        run_once(*args)
        raise ConnectionError("the commit was done, and its reply is lost")

    of = delayed_task(
        name="tests.pairs.note",
        once=True,
        unique=("key",),
        on_duplicate="replace",
        backoff=BACKOFF,
    )(note)
    run_once = OutboxPart.run_once
    monkeypatch.setattr(OutboxPart, "run_once", run_and_fail)
    of.schedule(0, 1, "a")
    assert outcomes(q.run_due()) == ["retrying"]
    monkeypatch.setattr(OutboxPart, "run_once", run_once)

    of.schedule(0, 2, "a")
    q.advance(minutes=5)

    assert done == [1, 2]


@shows("unique, keep", "expires")
def test_job_that_is_too_late_loses_its_key(q: FrozenQueue) -> None:
    of = task(unique=True, expires=60)
    late = of.schedule(0)
    pass_by(q, minutes=2)

    job = of.schedule(0)

    assert job.created
    assert job.id != late.id


@shows("unique, replace", "limit of a task")
def test_replaced_job_gets_the_limit_of_the_new_call(q: FrozenQueue) -> None:
    limit = Limit("tests-surprising", concurrency=1, key=lambda n, other="": other)
    of = task(unique=("failures",), on_duplicate="replace", limit=limit)
    blocker = task("blocker", limit=limit)
    blocker.schedule(0, 0, "a")
    hold_up(q)
    job = of.schedule(0, 0, "a")
    q.run_due()
    assert job.refresh() is State.HELD

    of.schedule(0, 0, "b")

    assert ids(q.run_due()) == [job.id]


@shows("MAX_JOBS", "unique, keep")
def test_call_that_makes_no_job_needs_no_room(q: FrozenQueue) -> None:
    of = task(queue="full", unique=True)
    job = of.schedule(60)

    assert of.schedule(60).id == job.id
    with pytest.raises(QueueFull):
        of.schedule(60, 1)


@shows("MAX_JOBS", "catch_up one")
def test_schedule_enters_a_full_queue(q: FrozenQueue) -> None:
    task(queue="full").schedule(3600)
    periodic(every(60))(task("periodic", queue="full"))

    assert outcomes(q.advance(minutes=2)) == ["succeeded", "succeeded"]


@shows("MAX_JOBS", "outbox")
@pytest.mark.django_db(transaction=True)
def test_row_enters_a_full_queue(q: FrozenQueue) -> None:
    of = task(queue="full", outbox=True)
    with transaction.atomic():
        of.schedule(60)
        of.schedule(60)

    assert find_jobs(queue="full").count() == 2


@shows("pause", "catch_up one")
def test_paused_queue_misses_moments_and_paused_task_none(q: FrozenQueue) -> None:
    periodic(every(60))(task("on queue"))
    q.run_due()
    pause("default")
    q.advance(minutes=5)
    resume("default")
    assert len(q.run_due()) == 1

    pause(task="tests.pairs.on queue")
    q.advance(minutes=3)
    resume(task="tests.pairs.on queue")
    assert len(q.run_due()) == 3


@shows("limit of a task", "retry")
def test_job_that_waits_for_its_retry_takes_no_slot(q: FrozenQueue) -> None:
    of = task(limit=Limit("tests-surprising", concurrency=1))
    first, second = of.schedule(0, 1), of.schedule(0)

    assert ids(q.run_due()) == [first.id, second.id]
    assert first.refresh() is State.RETRYING


@shows("rate of a task", "retry")
def test_retry_counts_as_a_start(q: FrozenQueue) -> None:
    of = task(limit=Limit("tests-surprising", rate="1/m burst 1"))
    job = of.schedule(0, 1)

    first, second = q.advance(minutes=5)

    assert (first.id, second.id) == (job.id, job.id)
    assert second.at - first.at >= timedelta(minutes=1)


@shows("limit of a task", "bulk changes")
def test_run_now_does_not_lift_a_limit(q: FrozenQueue) -> None:
    of = task(limit=Limit("tests-surprising", concurrency=1))
    of.schedule(0)
    leased = hold_up(q)
    job = of.schedule(0)
    q.advance(seconds=5)
    assert job.refresh() is State.HELD

    assert find_jobs(state="held").run_now().won == 1

    assert q.run_due() == []
    assert job.refresh() is State.HELD
    let_go(q, leased)
    assert ids(q.run_due()) == [job.id]


@shows("then", "retry")
def test_what_follows_waits_for_the_last_attempt(q: FrozenQueue) -> None:
    schedule(task().prepare(0, 1).then(task("next").prepare(0)))

    assert outcomes(q.run_due()) == ["retrying"]
    assert outcomes(q.advance(minutes=1)) == ["succeeded", "succeeded"]


@shows("batch", "retry")
def test_callback_waits_for_retries(q: FrozenQueue) -> None:
    batch = Batch(task("last").prepare(0))
    batch.schedule([task().prepare(0, 1)])

    q.run_due()
    assert batch.callback.refresh() is State.HELD
    q.advance(seconds=30)
    assert batch.callback.refresh() is State.SUCCEEDED


@shows("batch", "then")
def test_callback_does_not_wait_for_what_follows(q: FrozenQueue) -> None:
    batch = Batch(task("last").prepare(0))
    follower = task("next").prepare(60)
    batch.schedule([task().prepare(0).then(follower)])

    q.run_due()

    assert batch.callback.refresh() is State.SUCCEEDED
    assert follower.refresh() is State.SCHEDULED


@shows("once", "keep_result")
@pytest.mark.django_db(transaction=True)
def test_second_run_has_no_result(q: FrozenQueue) -> None:
    of = delayed_task(name="tests.pairs.answer", once=True, keep_result=60)(lambda: 42)
    job = of.schedule(0)
    # The worker that ran it died right after its commit.
    inbox.run_once(job.id, "default", lambda: 42)

    q.run_due()

    assert job.wait(timeout=1) is None


@shows("catch_up none", "spread")
@pytest.mark.parametrize(("seconds", "outcome"), [(59, "succeeded"), (61, "expired")])
def test_spread_job_expires_at_the_next_occurrence(
    q: FrozenQueue, seconds: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.secrets, "randbelow", lambda most: most - 1)
    periodic(every(60), catch_up="none", spread=30)(task("periodic"))
    q.run_due()
    (job,) = find_jobs(queue="default")
    assert job.start_time == NOON + timedelta(seconds=60 + 30)
    pass_by(q, seconds=60 + seconds)

    first, *_ = q.run_due()

    assert (first.id, first.outcome) == (job.id, outcome)


@shows("bulk changes", "unique, keep")
def test_cancelled_job_frees_its_key(q: FrozenQueue) -> None:
    of = task(unique=True)
    of.schedule(60)

    find_jobs(queue="default").cancel()

    assert of.schedule(60).created


@shows("REDISSON", "limit of a task")
def test_limit_does_not_bind_java(q: FrozenQueue) -> None:
    of = task(queue="java", limit=Limit("tests-surprising", concurrency=1))
    for _ in range(2):
        of.schedule(0)
    pause("java")
    q.run_due()
    resume("java")

    # The first job runs, and Java takes the second one.
    assert None not in (hold_up(q, queue="java"), BlockingQueue("java").poll())


@shows("REDISSON", "pause")
def test_pause_does_not_bind_java(q: FrozenQueue) -> None:
    task(queue="java").schedule(0)
    pause("java")
    assert q.run_due() == []

    assert BlockingQueue("java").poll() is not None


@shows("spread", "bulk changes")
def test_reschedule_does_not_spread(q: FrozenQueue) -> None:
    job = task(spread=3600).schedule(0)

    find_jobs(queue="default").reschedule(60)

    job.refresh()
    assert job.start_time == q.now + timedelta(minutes=1)
