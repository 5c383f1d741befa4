"""Each documented pair does what its sentence says."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    Backoff,
    Batch,
    DelayedTask,
    Limit,
    QueueFull,
    Retry,
    Snooze,
    State,
    current_job,
    delayed_task,
    ended_jobs,
    every,
    find_jobs,
    pause,
    periodic,
    resume,
    schedule,
)
from django_delayq.jobs import outbox, prepare
from django_delayq.outbox.models import InboxRow, OutboxRow
from django_delayq.outbox.part import OutboxPart
from django_delayq.testing import frozen_queue
from django_delayq.testing.frozen import FrozenQueue
from tests.pairs.features import DOCUMENTED, Pair
from tests.pairs.scenes import hold_up, showing
from tests.pairs.touching import NOON

BACKOFF = Backoff(base=30, factor=1, jitter=0)
#: The test of each pair.
SHOWN: dict[Pair, Callable[..., None]] = {}


shows = showing(SHOWN)


def task(name: str = "shown", **options: Any) -> DelayedTask[..., Any]:
    """Make a task that does what its first argument says."""

    def run_it(what: str = "succeed", token: str = "") -> None:
        job = current_job()
        assert job is not None
        if what == "fail" or (what == "fail once" and not job.attempts):
            raise ValueError(f"{what} {token}")
        if what == "snooze":
            raise Snooze(120)

    options = {"backoff": BACKOFF, **options}
    return delayed_task(name=f"tests.pairs.{name}", **options)(run_it)


def outcomes(ran: list[Any]) -> list[str]:
    return [each.outcome for each in ran]


@pytest.fixture
def q(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.DELAYQ = {
        "QUEUES": {"default": {}, "one": {"CONCURRENCY": 1}, "full": {"MAX_JOBS": 2}},
        "OUTBOX_KEEP": 0,
        # A test lets time pass while a job runs, and nobody renews its lease.
        "WORKER": {"LEASE": 3600},
    }
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    with frozen_queue(now=NOON, leave_due=True, periodic=True) as q:
        yield q


def test_every_documented_pair_is_shown() -> None:
    assert SHOWN.keys() == DOCUMENTED.keys()
    assert len(DOCUMENTED) <= 20


@shows("expires", "snooze")
def test_job_that_snoozes_beyond_its_expires_does_not_run(q: FrozenQueue) -> None:
    task(expires=90).schedule(0, "snooze")

    assert outcomes(q.advance(minutes=5)) == ["snoozed", "expired"]


@shows("expires", "retry")
def test_retry_later_than_expires_does_not_run(q: FrozenQueue) -> None:
    task(expires=20).schedule(0, "fail")

    assert outcomes(q.advance(minutes=5)) == ["retrying", "expired"]


@shows("expires", "pause")
def test_pause_does_not_stop_expires(q: FrozenQueue) -> None:
    task(expires=60).schedule(0)
    pause("default")
    assert q.advance(minutes=2) == []
    resume("default")

    assert outcomes(q.run_due()) == ["expired"]


@shows("expires", "limit of a queue")
def test_job_that_waits_for_room_too_long_expires(q: FrozenQueue) -> None:
    took: list[str] = []

    @delayed_task(name="tests.pairs.long", queue="one", expires=60)
    def long() -> None:
        # As long as this runs, the queue has no room for another job.
        took.extend(outcomes(q.advance(minutes=2)))

    long.schedule(0)
    waiting = task(queue="one", expires=60).schedule(0)
    ran = q.run_due()

    assert took == []
    assert outcomes(ran) == ["succeeded", "expired"]
    assert waiting.refresh() is State.EXPIRED


@shows("expires", "spread")
def test_expires_counts_from_the_spread_start(
    q: FrozenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.secrets, "randbelow", lambda most: most - 1)

    task(expires=10, spread=60).schedule(0)

    assert outcomes(q.advance(minutes=1)) == ["succeeded"]


@shows("expires", "on_dead")
@pytest.mark.parametrize(
    ("on_expiry", "states"),
    [("drop", ["expired"]), ("dead", ["dead", "succeeded"])],
)
def test_on_dead_follows_a_job_that_is_too_late_and_dead(
    q: FrozenQueue, on_expiry: Any, states: list[str]
) -> None:
    first = task("first", expires=60, on_expiry=on_expiry).prepare(0)
    schedule(first.on_dead(task("next").prepare(0)))
    pause("default")
    q.advance(minutes=2)
    resume("default")

    assert outcomes(q.run_due()) == states


@shows("unique until start", "pause")
def test_held_job_of_a_paused_task_has_no_key(q: FrozenQueue) -> None:
    of = task(unique=True, unique_until="start")
    pause(task=of)
    first = of.schedule(0)
    q.run_due()

    second = of.schedule(0)

    assert second.created
    assert second.id != first.id
    assert first.refresh() is State.HELD
    resume(task=of)
    assert outcomes(q.run_due()) == ["succeeded", "succeeded"]


@shows("KEEP_ENDED", "sensitive")
def test_list_of_ended_jobs_has_no_sensitive_values(q: FrozenQueue) -> None:
    task(sensitive=("token",), max_attempts=1).schedule(0, "fail", token="s3cret")
    q.run_due()

    (ended,) = ended_jobs("default")

    assert ended.error == "ValueError: fail ***"


@shows("limit of a key", "sensitive")
def test_key_of_a_limit_is_shown(q: FrozenQueue) -> None:
    limit = Limit("tests-shown", concurrency=1, key=lambda what, token: token)
    of = task(sensitive=("token",), limit=limit)
    of.schedule(0, "succeed", token="s3cret")
    hold_up(q)
    job = of.schedule(0, "succeed", token="s3cret")

    q.run_due()

    assert job.refresh() is State.HELD
    assert job.error["error"] == "limit tests-shown s3cret: 1 of 1"


@shows("unique, keep", "sensitive")
def test_unique_key_of_a_function_is_shown(q: FrozenQueue) -> None:
    for unique, is_shown in ((lambda what, token: token, True), (("token",), False)):
        of = task(f"key {is_shown}", sensitive=("token",), unique=unique)

        job = of.schedule(60, "succeed", token="s3cret")

        assert ("s3cret" in job.unique) is is_shown


@shows("MAX_JOBS", "retry")
def test_full_queue_takes_its_retries(q: FrozenQueue) -> None:
    of = task(queue="full")
    of.schedule(0, "fail once")
    of.schedule(20)
    assert outcomes(q.run_due()) == ["retrying"]

    with pytest.raises(QueueFull):
        of.schedule(0)

    assert outcomes(q.advance(minutes=1)) == ["succeeded", "succeeded"]


@shows("MAX_JOBS", "then")
def test_full_queue_takes_what_follows(q: FrozenQueue) -> None:
    of = task(queue="full")
    schedule(of.prepare(0).then(*(of.prepare(60) for _ in range(3))))
    of.schedule(90)

    q.run_due()

    assert find_jobs(queue="full").count() == 4


@shows("spread", "retry")
def test_retry_is_not_spread(q: FrozenQueue) -> None:
    job = task(spread=3600).schedule(0, "fail once")
    q.advance(job.start_time - q.now)

    assert job.refresh() is State.RETRYING
    assert job.start_time - q.now == timedelta(seconds=BACKOFF.base)


@shows("overlap=False", "retry")
def test_retry_of_a_schedule_is_held_and_not_dropped(q: FrozenQueue) -> None:
    done: list[str] = []

    def fetch() -> None:
        job = current_job()
        assert job is not None
        if len(done) == 0 and not job.attempts:
            done.append("failed")
            raise Retry(60)
        if len(done) == 1 and not job.attempts:
            done.append("runs for long")
            # The retry comes due while this job runs.
            done.extend(outcomes(q.advance(seconds=20)))
            done.append("ends")
            return
        done.append("retried" if job.attempts else "next")

    periodic(every(50), overlap=False)(delayed_task(name="tests.pairs.fetch")(fetch))

    q.advance(minutes=2)

    assert done[:4] == ["failed", "runs for long", "ends", "retried"]


@shows("batch", "bulk changes")
def test_changes_of_many_jobs_reach_a_batch_and_its_callback(q: FrozenQueue) -> None:
    of, last = task(), task("last")
    batch = Batch(last.prepare(0))
    batch.schedule([of.prepare(60), of.prepare(60)])
    Batch(last.prepare(0)).schedule([task("other").prepare(3600)])

    find_jobs(queue="default", task=of).cancel()
    assert outcomes(q.run_due()) == ["succeeded"]
    assert batch.callback.refresh() is State.SUCCEEDED

    q.advance(seconds=1)
    assert find_jobs(state="held").run_now().won == 1
    assert [each.task for each in q.run_due()] == [last.name]


@shows("batch", "unique, keep")
def test_callback_does_not_wait_for_the_holder_of_a_key(q: FrozenQueue) -> None:
    of = task(unique=True)
    holder = of.schedule(60)
    batch = Batch(task("last").prepare(0))
    batch.schedule([of.prepare(60), task("other").prepare(0)])

    q.run_due()

    assert batch.callback.refresh() is State.SUCCEEDED
    assert holder.refresh() is State.SCHEDULED


@shows("batch", "outbox")
@pytest.mark.django_db(transaction=True)
def test_batch_is_sent_by_the_commit_and_no_row(q: FrozenQueue) -> None:
    of = task(outbox=True)
    with transaction.atomic():
        Batch(of.prepare(0)).schedule([of.prepare(0)])
        rows = OutboxRow.objects.count()

    assert rows == 0
    assert outcomes(q.run_due()) == ["succeeded", "succeeded"]


@shows("once", "snooze")
@pytest.mark.django_db(transaction=True)
def test_run_that_snoozes_has_done_nothing(q: FrozenQueue) -> None:
    job = task(once=True).schedule(0, "snooze")

    assert outcomes(q.run_due()) == ["snoozed"]

    assert not InboxRow.objects.exists()
    job.cancel()


@shows("durable", "outbox")
@pytest.mark.django_db(transaction=True)
def test_call_that_writes_a_row_does_not_wait(
    q: FrozenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(
        type(q.server.keyspace),
        "do",
        watched(type(q.server.keyspace).do, waits),
    )
    with transaction.atomic():
        task(outbox=True, durable=1).schedule(0)
    assert waits == []
    assert OutboxRow.objects.count() == 1

    task(durable=1).using(outbox=False).schedule(0)

    assert waits == [b"WAIT"]
    q.run_due()


@shows("durable", "bulk changes")
def test_changes_of_many_jobs_do_not_wait(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {"QUEUES": {"default": {"DURABLE": 1}}}
    with frozen_queue(now=NOON, leave_due=True) as q:
        job = task().schedule(60)
        waits: list[Any] = []
        keyspace = type(q.server.keyspace)
        monkeypatch.setattr(keyspace, "do", watched(keyspace.do, waits))

        find_jobs(queue="default").reschedule(90)
        assert waits == []

        job.cancel()
        assert waits == [b"WAIT"]


def watched(do: Any, waits: list[Any]) -> Any:
    """Note when somebody waits for replicas."""

    def doing(self: Any, name: bytes, args: list[bytes]) -> Any:
        if name == b"WAIT":
            waits.append(name)
        return do(self, name, args)

    return doing
