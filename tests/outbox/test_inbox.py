"""Tasks whose effects in a database happen once, on SQLite and on PostgreSQL."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError

from django_delayq import (
    InvalidSettings,
    InvalidTask,
    Job,
    State,
    current_job,
    delayed_task,
    schedule,
    schedule_many,
)
from django_delayq.core import store as store_calls
from django_delayq.jobs import outbox
from django_delayq.jobs.registry import get_task
from django_delayq.outbox import inbox, row_writer
from django_delayq.outbox.models import InboxRow
from django_delayq.transport.run import run
from tests.jobs.hand import Hand
from tests.outbox import samples
from tests.outbox.test_outbox import rows
from tests.polling import wait_until
from tests.worker.workers import InlineWorker


@pytest.fixture(autouse=True)
def _tasks(alias: str) -> None:
    samples.ran.clear()
    samples.make_once(alias)


def on(queue: str, name: str, **options: Any) -> Any:
    return get_task(f"tests.outbox.{name}").using(queue=queue, **options)  # type: ignore[attr-defined]


def effects(alias: str) -> int:
    return ContentType.objects.using(alias).count()


def done(alias: str) -> list[str]:
    return list(InboxRow.objects.using(alias).values_list("job", flat=True))


def ends(job: Job[Any], state: State = State.SUCCEEDED) -> None:
    wait_until(lambda: job.refresh() is state, description=f"{job.id} is {state}")


def send_again(hand: Hand, job: Job[Any]) -> None:
    """Have a job run a second time, as after the loss of what told of its end."""
    new = job.draft.new
    hand.client.delete(hand.keys.ended, hand.keys.result(job.token))
    (stored,) = run(
        hand.client, store_calls.schedule(store_calls.Target(hand.keys), [new])
    )
    assert stored.beyond is None


def test_second_run_does_nothing_and_is_acknowledged(
    queue: str, hand: Hand, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    run_worker()
    job = schedule(on(queue, "effect"), 0, "first")
    assert job.wait(30) == "first"
    assert done(alias) == [job.id]

    send_again(hand, job)

    # Nobody has kept what the first run returned.
    assert job.wait(30) is None
    assert job.refresh() is State.SUCCEEDED
    assert samples.ran == ["first"]
    assert effects(alias) == 1


def test_failure_takes_the_row_back_and_the_retry_runs(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    run_worker()
    job = schedule(on(queue, "fails_first"), 0, "it")
    wait_until(lambda: job.refresh() is State.RETRYING, description="it has failed")
    assert done(alias) == []
    assert effects(alias) == 0

    job.run_now()

    ends(job)
    assert samples.ran == ["it", "it"]
    assert effects(alias) == 1


@pytest.mark.parametrize("what", ["retry", "snooze"])
def test_job_that_asks_to_run_again_has_done_nothing_yet(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker], what: str
) -> None:
    run_worker()

    job = schedule(on(queue, "decides"), 0, what)

    ends(job)
    assert samples.ran == [what, what]
    assert effects(alias) == 1
    assert done(alias) == [job.id]


def test_job_that_cancels_itself_has_done_nothing(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    run_worker()

    job = schedule(on(queue, "decides"), 0, "cancel")

    ends(job, State.CANCELLED)
    assert effects(alias) == 0
    assert done(alias) == []


@pytest.mark.parametrize("name", ["too_long", "atomic_too_long"])
def test_time_limit_leaves_no_transaction_open(
    queue: str,
    alias: str,
    run_worker: Callable[..., InlineWorker],
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    run_worker(threads=1)

    job = schedule(on(queue, name), 0)

    ends(job, State.DEAD)
    assert effects(alias) == 0
    assert done(alias) == []
    if alias == "of_postgres":
        cluster = request.getfixturevalue("postgres")
        name = connections[alias].settings_dict["NAME"]
        states = [state for state, _ in cluster.sessions(name)]
        assert [state for state in states if "transaction" in state] == []
    # The thread's next job has a connection that works.
    ends(schedule(on(queue, "effect"), 0, "next"))


def test_run_that_meets_an_unfinished_one_waits_for_its_end(alias: str) -> None:
    entered, may_end = threading.Event(), threading.Event()
    found: dict[str, object] = {}

    def slow() -> str:
        samples.effect(alias, "slow")
        entered.set()
        assert may_end.wait(30)
        return "slow"

    def first() -> None:
        found["first"] = inbox.run_once("q:1", alias, slow)
        connections[alias].close()

    def second() -> None:
        found["second"] = inbox.run_once("q:1", alias, lambda: "second")
        connections[alias].close()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()

    may_end.set()
    for thread in threads:
        thread.join(30)

    # The commit of the first frees the second, whichever of them gets on sooner.
    assert found == {"first": "slow", "second": None}
    assert effects(alias) == 1


def test_error_of_the_database_in_the_task_is_the_tasks_own(alias: str) -> None:
    def twice() -> None:
        ContentType.objects.using(alias).create(app_label="a", model="b")
        ContentType.objects.using(alias).create(app_label="a", model="b")

    with pytest.raises(IntegrityError):
        inbox.run_once("q:1", alias, twice)

    assert done(alias) == []


@pytest.mark.parametrize("how", ["outbox", "schedule", "schedule_many"])
def test_jobs_that_it_schedules_are_committed_with_its_row(
    queue: str,
    hand: Hand,
    alias: str,
    run_worker: Callable[..., InlineWorker],
    how: str,
) -> None:
    @delayed_task(name="tests.outbox.chain", queue=queue, once=alias)
    def chain() -> None:
        samples.ran.append("chain")
        task = samples.note.using(queue=queue, on_commit=alias)
        if how == "schedule_many":
            schedule_many([task.prepare(0, "next")])
        else:
            task.using(outbox=how == "outbox").schedule(0, "next")
        assert len(rows(alias)) == 1
        job = current_job()
        assert job is not None
        if job.attempts == 0:
            raise ValueError("after it has scheduled the next")

    run_worker()
    job = chain.schedule(0)
    wait_until(lambda: job.refresh() is State.RETRYING, description="it has failed")
    job.run_now()
    ends(job)

    wait_until(lambda: "next" in samples.ran, description="the next has run")
    assert samples.ran == ["chain", "chain", "next"]


def failing_behind_the_first_run(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware that fails the first attempt once all that the task did is committed."""

    def within(job: Any) -> Any:
        value = call(job)
        if len(samples.ran) == 1:
            raise ValueError("after the commit")
        return value

    return within


def test_arguments_that_a_later_call_has_brought_run_although_those_before_have(
    queue: str,
    alias: str,
    settings: Any,
    run_worker: Callable[..., InlineWorker],
) -> None:
    path = f"{__name__}.{failing_behind_the_first_run.__name__}"
    settings.DELAYQ = settings.DELAYQ | {"MIDDLEWARE": [path]}
    run_worker()
    task = on(queue, "effect", unique=lambda name: "k", on_duplicate="replace")
    job = schedule(task, 0, "first")
    wait_until(lambda: job.refresh() is State.RETRYING, description="it has failed")
    assert done(alias) == [job.id]

    later = schedule(task, 0, "second")
    assert (later.id, later.replaced) == (job.id, True)
    assert later.run_now()

    assert later.wait(30) == "second"
    assert samples.ran == ["first", "second"]
    assert effects(alias) == 2
    # Each run of the replacement is known as well.
    (name,) = set(done(alias)) - {job.id}
    again = name.rpartition(":")[2]
    inbox.run_once(job.id, alias, lambda: samples.effect(alias, "third"), again)
    assert effects(alias) == 2


def test_direct_call_is_an_ordinary_call(alias: str) -> None:
    task = get_task("tests.outbox.effect")

    assert task.function("direct") == "direct"
    assert task.function("direct") == "direct"

    assert effects(alias) == 2
    assert done(alias) == []


def test_task_that_calls_itself_is_one_run(
    queue: str, alias: str, run_worker: Callable[..., InlineWorker]
) -> None:
    @delayed_task(name="tests.outbox.nested", queue=queue, once=alias)
    def nested(depth: int) -> None:
        samples.effect(alias, "nested")
        if depth:
            nested(depth - 1)

    run_worker()

    ends(nested.schedule(0, 2))

    assert effects(alias) == 3


def test_works_within_a_transaction_of_the_caller(alias: str) -> None:
    with transaction.atomic(using=alias):
        inbox.run_once("q:1", alias, lambda: samples.effect(alias, "one"))
        inbox.run_once("q:1", alias, lambda: samples.effect(alias, "two"))

    assert effects(alias) == 1


def test_async_task_is_refused() -> None:
    with pytest.raises(InvalidTask, match="is async def, and once=True"):

        @delayed_task(name="tests.outbox.async", once=True)
        async def task() -> None: ...


def test_once_cannot_be_changed_for_one_call() -> None:
    with pytest.raises(InvalidTask, match="once cannot be changed for one call"):
        samples.note.using(once=True)


@pytest.mark.parametrize("value", [1, "", None])
def test_once_is_true_or_an_alias(value: Any) -> None:
    with pytest.raises(InvalidTask, match="once="):
        delayed_task(name="tests.outbox.wrong", once=value)(lambda: None)


def test_unknown_alias_fails_the_attempt_with_advice() -> None:
    with pytest.raises(InvalidTask, match="it is not in DATABASES; give True"):
        inbox.run_once("q:1", "nowhere", lambda: None)


def test_without_the_app_the_attempt_says_what_to_do(
    queue: str,
    run_worker: Callable[..., InlineWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_installed", None)
    run_worker()

    job = schedule(on(queue, "effect", max_attempts=1), 0, "it")

    ends(job, State.DEAD)
    assert job.error is not None
    assert InvalidSettings.__name__ in job.error["error"]
    assert "add 'django_delayq.outbox' to INSTALLED_APPS" in job.error["error"]


def test_rows_go_after_thirty_days_a_bounded_number_at_a_time(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "DELETED", 2)
    rows = InboxRow.objects.using(alias)
    for n in range(5):
        InboxRow(job=f"q:{n}").save(force_insert=True, using=alias)
    rows.exclude(job="q:4").update(ran_ms=F("ran_ms") - 31 * 86_400_000)

    assert inbox.delete_old(alias) == 2
    assert sorted(done(alias)) == ["q:2", "q:3", "q:4"]
    assert inbox.delete_old(alias) == 2
    assert inbox.delete_old(alias) == 0
    assert done(alias) == ["q:4"]


def test_long_id_has_a_name_of_its_own() -> None:
    long = "q" * 300 + ":token"

    assert inbox.name_of("q:1") == "q:1"
    assert len(inbox.name_of(long)) <= inbox.LONGEST_NAME
    assert inbox.name_of(long) != inbox.name_of(long + "2")


def _swallow(alias: str) -> None:
    ContentType.objects.using(alias).create(app_label="twice", model="twice")
    with contextlib.suppress(IntegrityError):
        ContentType.objects.using(alias).create(app_label="twice", model="twice")


def _ask_for_a_rollback(alias: str) -> None:
    transaction.set_rollback(True, using=alias)


def _close(alias: str) -> None:
    connections[alias].close()


def _connect_anew(alias: str) -> None:
    connections[alias].close()
    connections[alias].connect()


def _roll_back(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("rollback")


def _fail_a_bare_statement(alias: str) -> None:
    with connections[alias].cursor() as cursor, contextlib.suppress(DatabaseError):
        cursor.execute("SELECT nothing FROM nowhere")
    if connections[alias].vendor != "postgresql":
        # Only there it ends the transaction.
        transaction.set_rollback(True, using=alias)


@pytest.mark.parametrize(
    "spoil",
    [
        _swallow,
        _ask_for_a_rollback,
        _close,
        _connect_anew,
        _roll_back,
        _fail_a_bare_statement,
    ],
)
def test_what_cannot_be_committed_is_a_failure(
    alias: str, spoil: Callable[[str], None]
) -> None:
    def work() -> str:
        ContentType.objects.using(alias).create(app_label="x", model="x")
        spoil(alias)
        return "done"

    with pytest.raises(
        TransactionManagementError,
        match="job q:x: the task suppressed a database error",
    ):
        inbox.run_once("q:x", alias, work)

    assert effects(alias) == 0
    assert done(alias) == []


def test_statement_that_fails_within_a_savepoint_is_no_failure(alias: str) -> None:
    def work() -> str:
        ContentType.objects.using(alias).create(app_label="x", model="x")
        with contextlib.suppress(IntegrityError), transaction.atomic(using=alias):
            ContentType.objects.using(alias).create(app_label="x", model="x")
        return "done"

    assert inbox.run_once("q:x", alias, work) == "done"
    assert effects(alias) == 1
    assert done(alias) == ["q:x"]


def test_job_that_it_sends_with_its_commit_is_a_row_of_that(
    queue: str,
    alias: str,
    run_worker: Callable[..., InlineWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if the process had died after the commit.
    monkeypatch.setattr(row_writer._Hook, "__call__", lambda hook: None)
    follow = on(queue, "effect", on_commit=alias)

    @delayed_task(name="tests.outbox.sends", queue=queue, once=alias)
    def sends() -> None:
        follow.schedule(0, "followed")

    run_worker()
    job = schedule(sends, 0)
    ends(job)

    assert done(alias)[0] == job.id
    # A worker finds it.
    wait_until(lambda: "followed" in samples.ran, description="the row is sent")
