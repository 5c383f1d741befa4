"""Jobs that wait for the commit of a transaction: real ones, on two databases."""

import asyncio
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group, User
from django.db import connections, transaction
from django.db.models.signals import post_delete
from redis.exceptions import ConnectionError, ResponseError

from django_delayq import (
    Batch,
    InvalidDelay,
    InvalidTask,
    Job,
    JobNotFound,
    State,
    aschedule,
    aschedule_many,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.core.keys import DeliveryKeys
from django_delayq.jobs import commit as commit_module
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.queues.proxy import Proxy
from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@contextmanager
def rolled_back(using: str | None = None) -> Iterator[None]:
    """Begin a transaction, or a part of one, and take it back at the end."""
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


def on(queue: str, on_commit: bool | str = True) -> Any:
    return samples.add.using(queue=queue, on_commit=on_commit)


def test_job_is_sent_with_the_commit_and_known_before(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        assert job.state is State.UNCOMMITTED
        assert job.start_time is None
        assert job.id == f"{queue}:{job.token}"
        assert hand.tokens() == []

    assert hand.tokens() == [job.token]
    assert job.state is State.SCHEDULED
    assert job.start_time is not None
    assert get_job(job.id).args == [1]


def test_rollback_means_no_job(queue: str, hand: Hand) -> None:
    with rolled_back():
        job = schedule(on(queue), LATER, 1)

    assert hand.tokens() == []
    assert job.state is State.UNCOMMITTED


def test_rollback_of_an_inner_block_takes_its_jobs_only(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        kept = schedule(on(queue), LATER, 1)
        with rolled_back():
            schedule(on(queue), LATER, 2)
        also = schedule(on(queue), LATER, 3)

    assert set(hand.tokens()) == {kept.token, also.token}


def test_jobs_are_sent_in_their_order_after_the_outermost_commit(
    queue: str, hand: Hand
) -> None:
    with transaction.atomic():
        schedule(on(queue), 0, 1)
        with transaction.atomic():
            schedule(on(queue), 0, 2)
        assert hand.tokens() == []
        schedule(on(queue), 0, 3)

    assert [envelope.args for envelope in hand.take_all()] == [[1], [2], [3]]


def test_job_finds_the_row_that_was_written_with_it(queue: str) -> None:
    with transaction.atomic():
        group = Group.objects.create(name="with a job")
        job = schedule(on(queue), LATER, group.pk)

    assert Group.objects.filter(pk=get_job(job.id).args[0]).exists()


def test_outside_a_transaction_it_is_sent_at_once(queue: str, hand: Hand) -> None:
    job = schedule(on(queue), LATER, 1)

    assert job.state is State.SCHEDULED
    assert hand.tokens() == [job.token]


def test_without_on_commit_it_is_sent_at_once_and_stays_after_a_rollback(
    queue: str, hand: Hand
) -> None:
    with rolled_back():
        job = schedule(on(queue, False), LATER, 1)

    assert hand.tokens() == [job.token]


def test_relative_delay_counts_from_the_commit(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        seconds, microseconds = hand.client.time()

    before_commit_ms = seconds * 1_000 + microseconds / 1_000
    assert job.start_time_ms is not None
    assert job.start_time_ms >= before_commit_ms + LATER * 1_000


# Databases.


def test_alias_names_the_database_whose_commit_is_waited_for(
    queue: str, hand: Hand
) -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            job = schedule(on(queue, "other"), LATER, 1)
        assert hand.tokens() == [], "the commit of another database"

    assert hand.tokens() == [job.token]


def test_true_is_the_default_database(queue: str, hand: Hand) -> None:
    with transaction.atomic(using="other"):
        job = schedule(on(queue), LATER, 1)
        assert hand.tokens() == [job.token]


def test_rollback_of_another_database_does_not_matter(queue: str, hand: Hand) -> None:
    with rolled_back(using="other"):
        with transaction.atomic():
            job = schedule(on(queue), LATER, 1)

    assert hand.tokens() == [job.token]


@pytest.mark.parametrize("send", [schedule, async_to_sync(aschedule)])
def test_unknown_alias_is_named_with_the_known_ones(
    queue: str, hand: Hand, send: Any
) -> None:
    said = (
        f"on_commit of task '{samples.add.name}' is 'nowhere', which is not in DATABASES;"
        " .*one of 'default', 'other'"
    )
    with pytest.raises(InvalidTask, match=said):
        send(on(queue, "nowhere"), LATER, 1)

    assert hand.tokens() == []


# By default.


def prepared(queue: str, count: int = 3, **options: Any) -> list[Job[int]]:
    task = samples.add.using(queue=queue, **options)
    return [task.prepare(LATER, n) for n in range(count)]


def test_job_of_a_transaction_waits_for_its_commit(queue: str, hand: Hand) -> None:
    task = samples.add.using(queue=queue)

    with transaction.atomic():
        job = task.schedule(LATER, 1)
        assert job.state is State.UNCOMMITTED
        with pytest.raises(JobNotFound, match="has not committed"):
            get_job(job.id)
        assert hand.tokens() == []

    assert hand.tokens() == [job.token]


def test_many_jobs_wait_in_one_hook(queue: str, hand: Hand) -> None:
    jobs = prepared(queue)

    with transaction.atomic():
        assert schedule_many(iter(jobs)) == jobs
        assert {job.state for job in jobs} == {State.UNCOMMITTED}
        assert len(transaction.get_connection().run_on_commit) == 1
        assert jobs[0].cancel()
        assert hand.tokens() == []

    assert [job.state for job in jobs] == [State.CANCELLED, *[State.SCHEDULED] * 2]
    assert hand.tokens() == [job.token for job in jobs[1:]]
    assert pickle.loads(pickle.dumps(jobs[1])) == jobs[1]


def test_many_jobs_are_dropped_with_the_rollback_of_their_part(
    queue: str, hand: Hand
) -> None:
    dropped, kept = prepared(queue), prepared(queue)

    with transaction.atomic():
        with rolled_back():
            schedule_many(dropped)
        schedule_many(kept)

    assert hand.tokens() == [job.token for job in kept]
    assert {job.refresh() for job in dropped} == {State.MISSING}


def test_each_of_many_jobs_goes_with_its_own_commit(queue: str, hand: Hand) -> None:
    (at_once,) = prepared(queue, 1, on_commit=False)
    (first,) = prepared(queue, 1)
    (second,) = prepared(queue, 1, on_commit="other")

    with transaction.atomic(using="other"):
        with transaction.atomic():
            assert schedule_many([first, at_once, second]) == [at_once, first, second]
            assert hand.tokens() == [at_once.token]
        assert hand.tokens() == [at_once.token, first.token]

    assert hand.tokens() == [at_once.token, first.token, second.token]


def test_batch_waits_as_one(queue: str, hand: Hand) -> None:
    callback, *jobs = prepared(queue, 4)
    batch = Batch(callback)

    with transaction.atomic():
        assert batch.schedule(jobs) == jobs
        assert {job.refresh() for job in (callback, *jobs)} == {State.UNCOMMITTED}
        assert not callback.cancel(), "only a rollback withdraws it"
        assert jobs[0].cancel()
        with pytest.raises(InvalidTask, match="callback"):
            batch.schedule(jobs)
        assert hand.client.keys(f"*{queue}*") == []

    assert [job.refresh() for job in jobs] == ["cancelled", *["scheduled"] * 2]
    assert callback.refresh() is State.HELD
    assert batch.left() == 2


def test_batch_is_dropped_with_the_rollback(queue: str, hand: Hand) -> None:
    callback, *jobs = prepared(queue)

    with rolled_back():
        Batch(callback).schedule(jobs)

    assert {job.refresh() for job in (callback, *jobs)} == {State.MISSING}
    assert hand.client.keys(f"*{queue}*") == []


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("ends", ["rollback", "given up"])
def test_batch_that_no_commit_has_sent_can_be_scheduled_again(
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    hand: Hand,
    ends: str,
    is_in_transaction: bool,
) -> None:
    callback, *jobs = prepared(queue)
    batch = Batch(callback)

    def commit() -> None:
        with transaction.atomic():
            schedule(spoilt, LATER, 1)
            batch.schedule(jobs)

    if ends == "rollback":
        with rolled_back():
            batch.schedule(jobs)
    else:
        spoilt = spoil(hand)
        monkeypatch.setattr(commit_module, "PATIENCE_MS", -1)
        with pytest.raises(ResponseError):
            commit()
    assert callback.refresh() is State.MISSING
    assert hand.tokens() == []

    if is_in_transaction:
        with transaction.atomic():
            assert batch.schedule(jobs) == jobs
            assert callback.state is State.UNCOMMITTED
    else:
        batch.schedule(jobs)

    assert set(hand.tokens()) == {job.token for job in jobs}
    assert callback.refresh() is State.HELD


@pytest.mark.parametrize("says_so", ["callback", "part"])
def test_batch_goes_with_its_callback(queue: str, hand: Hand, says_so: str) -> None:
    (callback,) = prepared(queue, 1, on_commit=False if says_so == "callback" else None)
    jobs = prepared(queue, 2, on_commit=False if says_so == "part" else None)

    with transaction.atomic():
        Batch(callback).schedule(jobs)
        assert len(hand.tokens()) == (2 if says_so == "callback" else 0)

    assert len(hand.tokens()) == 2


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_batch_that_a_commit_could_not_send_can_be_scheduled_again(
    settings: Any, queue: str, hand: Hand, is_in_transaction: bool
) -> None:
    good = settings.DELAYQ
    callback, *jobs = prepared(queue)
    batch = Batch(callback)

    def commit() -> None:
        with transaction.atomic():
            batch.schedule(jobs)

    settings.DELAYQ = good | {"CONNECTION": "unix:///dev/null/nobody"}
    with pytest.raises(ConnectionError) as failure:
        commit()
    settings.DELAYQ = good
    assert f"sending its job {callback.id}" in "\n".join(failure.value.__notes__)
    assert {job.refresh() for job in (callback, *jobs)} == {State.MISSING}

    if is_in_transaction:
        with transaction.atomic():
            batch.schedule(jobs)
            assert {job.refresh() for job in (callback, *jobs)} == {State.UNCOMMITTED}
    else:
        batch.schedule(jobs)

    assert set(hand.tokens()) == {job.token for job in jobs}
    assert callback.refresh() is State.HELD


def test_without_autocommit_only_a_written_on_commit_is_refused(
    queue: str, hand: Hand
) -> None:
    connection = transaction.get_connection()
    connection.set_autocommit(False)
    try:
        Group.objects.create(name="begins a transaction")
        job = samples.add.using(queue=queue).schedule(LATER, 1)
        with pytest.raises(transaction.TransactionManagementError, match="autocommit"):
            on(queue).schedule(LATER, 2)
    finally:
        connection.rollback()
        connection.set_autocommit(True)

    assert hand.tokens() == [job.token]


def test_atomic_without_autocommit_is_no_commit_to_wait_for(
    queue: str, hand: Hand
) -> None:
    one, *many = prepared(queue)
    callback, *parts = prepared(queue)
    (in_outbox,) = prepared(queue, 1, outbox=True)
    connection = transaction.get_connection()
    connection.set_autocommit(False)
    try:
        with transaction.atomic(), transaction.atomic():
            schedule_many([one])
            schedule_many(many)
            Batch(callback).schedule(parts)
            for written in (on(queue).prepare(LATER, 1), in_outbox):
                with pytest.raises(
                    transaction.TransactionManagementError,
                    match="runs at the commit; give on_commit=False",
                ):
                    Batch(written).schedule(prepared(queue, 1))
            with pytest.raises(transaction.TransactionManagementError):
                on(queue).schedule(LATER, 1)
    finally:
        connection.rollback()
        connection.set_autocommit(True)

    sent = [one, *many, *parts]
    assert set(hand.tokens()) == {job.token for job in sent}
    assert callback.refresh() is State.HELD


def test_job_of_a_hook_is_sent_at_once(queue: str, hand: Hand) -> None:
    sent: list[list[str]] = []

    def hook() -> None:
        samples.add.using(queue=queue).schedule(LATER, 1)
        with transaction.atomic():
            samples.add.using(queue=queue).schedule(LATER, 2)
            sent.append(hand.tokens())
        sent.append(hand.tokens())

    with transaction.atomic():
        transaction.on_commit(hook)

    assert [len(tokens) for tokens in sent] == [1, 2]


def test_other_thread_has_no_part_in_the_transaction(queue: str, hand: Hand) -> None:
    task = samples.add.using(queue=queue)

    with transaction.atomic():
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(task.schedule, LATER, 1).result()
        assert hand.tokens() == [job.token]


def test_each_thread_asks_for_a_connection_once(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(on(queue), LATER, 1)
    asked: list[str] = []

    def note(self: Any, alias: str) -> Any:
        asked.append(alias)
        raise AssertionError(alias)

    monkeypatch.setattr(type(connections), "__getitem__", note)

    schedule(on(queue), LATER, 2)

    assert asked == []


def test_connection_in_the_place_of_another_is_the_one_that_is_asked(
    queue: str, hand: Hand
) -> None:
    schedule(on(queue), LATER, 0)
    before = connections["other"]
    schedule(on(queue, "other"), LATER, 1)
    connections["other"] = before.copy()
    try:
        with transaction.atomic(using="other"):
            job = schedule(on(queue, "other"), LATER, 2)
            assert job.state is State.UNCOMMITTED
        assert job.state is State.SCHEDULED
    finally:
        connections["other"].close()
        connections["other"] = before


def test_job_of_a_signal_handler_waits_for_the_write_that_it_hears_of(
    queue: str, hand: Hand
) -> None:
    # Django deletes in a transaction without a savepoint.
    def handle(**kwargs: Any) -> None:
        samples.add.using(queue=queue).schedule(LATER, 1)
        seen.append(hand.tokens())

    seen: list[list[str]] = []
    user = User.objects.create(username="goes")
    user.groups.add(Group.objects.create(name="with a user"))
    post_delete.connect(handle, sender=User)
    try:
        user.delete()
    finally:
        post_delete.disconnect(handle, sender=User)

    assert seen == [[]]
    assert len(hand.tokens()) == 1


# Settings and options.


@pytest.mark.parametrize(
    ("setting", "option", "waits"),
    [
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
    ],
)
def test_task_overrides_the_setting(
    settings: Any,
    queue: str,
    hand: Hand,
    setting: bool,
    option: bool | None,
    waits: bool,
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"ON_COMMIT": setting}
    task = samples.add.using(queue=queue, on_commit=option)

    with transaction.atomic():
        schedule(task, LATER, 1)
        assert len(hand.tokens()) == (0 if waits else 1)

    assert len(hand.tokens()) == 1


def test_unique_key_is_taken_with_the_commit(queue: str, hand: Hand) -> None:
    task = samples.once.using(queue=queue)
    with transaction.atomic():
        mine = schedule(task, LATER, 5)
        theirs = task.using(on_commit=False).schedule(LATER, 5)

    assert mine.created is False
    assert mine.id == theirs.id
    assert hand.tokens() == [theirs.token]


# What goes wrong.


def test_bad_call_is_refused_where_it_is_made(queue: str) -> None:
    with transaction.atomic():
        with pytest.raises(TypeError):
            schedule(on(queue), LATER)


@pytest.fixture
def unreachable(settings: Any, queue: str) -> None:
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": "unix:///dev/null/nobody"}


@pytest.mark.usefixtures("unreachable")
def test_failure_after_the_commit_is_raised_and_names_the_job(queue: str) -> None:
    job: Any = None

    def commit() -> None:
        nonlocal job
        with transaction.atomic():
            Group.objects.create(name="committed")
            job = schedule(on(queue), LATER, 1)

    with pytest.raises(Exception, match="Error") as failure:
        commit()

    notes = "\n".join(failure.value.__notes__)
    assert "the transaction is committed; sending its job" in notes
    assert job.id in notes
    assert samples.add.name in notes
    assert "outbox=True" in notes
    assert Group.objects.filter(name="committed").exists()


@pytest.mark.usefixtures("unreachable")
def test_failure_that_is_raised_after_the_commit_is_not_logged_as_well(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception, match="Error"), transaction.atomic():
        schedule(on(queue), LATER, 1)

    assert [each for each in caplog.records if each.name == "django_delayq"] == []


def test_job_that_failed_to_be_sent_can_be_sent_again(
    settings: Any, queue: str, hand: Hand
) -> None:
    good = settings.DELAYQ
    job: Any = None

    def commit() -> None:
        nonlocal job
        with transaction.atomic():
            job = schedule(on(queue), LATER, 1)

    settings.DELAYQ = good | {"CONNECTION": "unix:///dev/null/nobody"}
    with pytest.raises(Exception, match="Error"):
        commit()
    settings.DELAYQ = good

    schedule_many([job])

    assert hand.tokens() == [job.token]


def spoil(hand: Hand) -> Any:
    """Return a task whose queue the server refuses, for another application uses its key."""
    other = hand.keys.queue.name + "-2"
    hand.client.set(DeliveryKeys.of(other).queue.timeout_set, "somebody's")
    return on(other)


@pytest.mark.parametrize("undoes_a_part", [False, True])
def test_refused_hook_stops_no_later_one_and_is_raised_after_them(
    queue: str, hand: Hand, undoes_a_part: bool
) -> None:
    ran: list[str] = []
    spoilt = spoil(hand)
    jobs: list[Job[int]] = []

    def commit() -> None:
        with transaction.atomic():
            jobs.append(schedule(spoilt, LATER, 1))
            transaction.on_commit(lambda: ran.append("first"))
            jobs.append(schedule(on(queue), LATER, 2))
            jobs.append(schedule(spoilt, LATER, 3))
            if undoes_a_part:
                with rolled_back():
                    schedule(on(queue), LATER, 4)
            transaction.on_commit(lambda: ran.append("last"))

    with pytest.raises(ResponseError, match="WRONGTYPE") as failure:
        commit()

    assert ran == ["first", "last"]
    assert hand.tokens() == [jobs[1].token]
    notes = "\n".join(failure.value.__notes__)
    assert all(job.id in notes for job in (jobs[0], jobs[2]))
    assert jobs[1].id not in notes
    assert [job.refresh() for job in jobs] == ["missing", "scheduled", "missing"]
    with transaction.atomic():
        transaction.on_commit(lambda: ran.append("next"))
    assert ran[-1] == "next", "the connection's hooks go on"


def test_failure_of_somebodys_own_hook_hides_no_failure_of_ours(
    queue: str, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("somebody's own")

    def commit() -> Job[int]:
        with transaction.atomic():
            job = schedule(spoilt, LATER, 1)
            transaction.on_commit(fail)
        return job

    spoilt = spoil(hand)

    with pytest.raises(RuntimeError, match="somebody's own"):
        commit()

    assert "sending its job" in caplog.text
    assert "not stored" in caplog.text


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_hook_of_somebody_else_that_raises_stops_no_job(
    queue: str, hand: Hand, raised: type[BaseException]
) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise raised("somebody's own")

    def commit() -> None:
        with transaction.atomic():
            schedule(on(queue), 0, 1)
            transaction.on_commit(fail)
            schedule(on(queue), 0, 2)
            with rolled_back():
                schedule(on(queue), 0, 0)
            transaction.on_commit(lambda: ran.append("behind it"))
            schedule_many([on(queue).prepare(0, n) for n in (3, 4)])

    with pytest.raises(raised, match="somebody's own"):
        commit()

    assert [envelope.args for envelope in hand.take_all()] == [[1], [2], [3], [4]]
    assert ran == []


def test_hook_that_raises_sends_no_job_of_an_outer_commit_early(
    queue: str, hand: Hand
) -> None:
    seen: list[list[str]] = []
    inner: list[Job[int]] = []

    def fail() -> None:
        raise RuntimeError("somebody's own")

    def commit_inner() -> None:
        with transaction.atomic():
            transaction.on_commit(fail)
            inner.append(schedule(on(queue), LATER, 1))

    def hook() -> None:
        with pytest.raises(RuntimeError):
            commit_inner()
        seen.append(hand.tokens())

    with transaction.atomic():
        transaction.on_commit(hook)
        outer = schedule(on(queue), LATER, 2)

    assert seen == [[inner[0].token]]
    assert set(hand.tokens()) == {inner[0].token, outer.token}


def test_handle_can_be_pickled_once_its_job_was_sent(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)

    assert pickle.loads(pickle.dumps(job)).refresh() is State.SCHEDULED
    assert hand.tokens() == [job.token]


def test_pickled_handle_of_a_job_that_waits_for_a_commit_asks_the_server(
    queue: str, hand: Hand
) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        copied = pickle.loads(pickle.dumps(job))
        assert copied == job
        assert copied.refresh() is State.MISSING

    assert hand.tokens() == [job.token]
    assert copied.refresh() is State.SCHEDULED


def test_pickled_handle_of_a_job_that_was_rolled_back_can_be_sent(
    queue: str, hand: Hand
) -> None:
    with rolled_back():
        job = schedule(on(queue), LATER, 1)

    schedule_many([pickle.loads(pickle.dumps(job))])

    assert hand.tokens() == [job.token]


def test_lost_reply_after_the_commit_says_one_thing(
    settings: Any, server: Server, queue: str, hand: Hand
) -> None:
    schedule(samples.add.using(queue=queue), LATER, 0).cancel()
    proxy = Proxy(server)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
    proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)

    def commit() -> None:
        with transaction.atomic():
            schedule(on(queue), LATER, 1)

    with pytest.raises(ConnectionError) as failure:
        commit()
    proxy.close()

    notes = "\n".join(failure.value.__notes__)
    assert "may be stored or not" in notes
    assert "pass the job to schedule_many within" in notes
    assert "make the job first" not in notes
    assert "not stored" not in notes
    assert "was not" not in notes
    assert len(hand.tokens()) == 1


def test_hooks_that_fail_slowly_are_given_up(
    monkeypatch: pytest.MonkeyPatch, settings: Any, queue: str
) -> None:
    monkeypatch.setattr(commit_module, "PATIENCE_MS", -1)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": "unix:///dev/null/nobody"}
    jobs: list[Job[int]] = []

    def commit() -> None:
        with transaction.atomic():
            jobs.extend(schedule(on(queue), LATER, n) for n in range(3))

    with pytest.raises(ConnectionError) as failure:
        commit()

    notes = failure.value.__notes__
    assert sum("It was not sent" in note for note in notes) == 2
    assert [job.refresh() for job in jobs] == [State.MISSING] * 3


# Before the commit.


def test_job_cancelled_before_the_commit_is_never_sent(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        assert job.cancel()
        assert job.state is State.CANCELLED

    assert hand.tokens() == []
    assert job.state is State.CANCELLED


@pytest.mark.parametrize("is_async", [False, True])
def test_job_that_was_looked_at_before_the_commit_is_sent_all_the_same(
    queue: str, hand: Hand, is_async: bool
) -> None:
    def call(job: Job[Any], name: str, *args: Any) -> Any:
        if is_async:
            return async_to_sync(getattr(job, f"a{name}"))(*args)
        return getattr(job, name)(*args)

    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        assert call(job, "refresh") is State.UNCOMMITTED
        assert not call(job, "discard")
        assert job.state is State.UNCOMMITTED

    assert hand.tokens() == [job.token]
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        call(job, "refresh")
        assert call(job, "cancel")
        assert call(job, "refresh") is State.CANCELLED
    assert len(hand.tokens()) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_job_moved_before_the_commit_is_sent_with_its_new_time(
    queue: str, hand: Hand, is_async: bool
) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        if is_async:
            assert async_to_sync(job.areschedule)(moment)
        else:
            assert job.reschedule(moment)
        assert job.state is State.UNCOMMITTED
        with pytest.raises(InvalidDelay):
            job.reschedule(-1)

    assert job.start_time == moment
    assert get_job(job.id).start_time == moment


def test_job_of_a_transaction_that_was_rolled_back_is_missing(
    queue: str, hand: Hand
) -> None:
    with transaction.atomic():
        with rolled_back():
            job = schedule(on(queue), LATER, 1)
            assert job.refresh() is State.UNCOMMITTED
        assert job.refresh() is State.MISSING
        assert not job.reschedule(LATER)
        assert not job.run_now()

    assert job.refresh() is State.MISSING
    assert job.cancel(), "it will not run"
    assert hand.tokens() == []


def test_job_is_pending_for_the_hooks_that_run_before_its_own(
    queue: str, hand: Hand
) -> None:
    seen: list[State] = []
    jobs: list[Job[int]] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(jobs[0].refresh()))
        jobs.append(schedule(on(queue), LATER, 1))
        transaction.on_commit(lambda: seen.append(jobs[0].refresh()))

    assert seen == [State.UNCOMMITTED, State.SCHEDULED]


@pytest.mark.parametrize("is_async", [False, True])
def test_wait_before_the_commit_says_what_it_would_wait_for(
    queue: str, is_async: bool
) -> None:
    def wait(job: Job[Any]) -> None:
        if is_async:
            async_to_sync(job.await_result)(60)
        else:
            job.wait(60)

    task = samples.double.using(queue=queue, on_commit=True)
    with rolled_back():
        job = schedule(task, LATER, 1)
        with pytest.raises(JobNotFound, match="waits for the commit"):
            wait(job)

    with pytest.raises(JobNotFound, match="was rolled back"):
        wait(job)
    with pytest.raises(JobNotFound, match="schedule_many"):
        wait(task.prepare(LATER, 1))


def test_job_that_waits_for_a_commit_is_sent_once_if_it_is_scheduled_again(
    queue: str, hand: Hand
) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)
        assert schedule_many([job]) == [job]
        assert hand.tokens() == []

    assert hand.tokens() == [job.token]


def test_job_cancelled_after_the_commit_is_taken_out(queue: str, hand: Hand) -> None:
    with transaction.atomic():
        job = schedule(on(queue), LATER, 1)

    assert job.cancel()

    assert hand.tokens() == []


# On the event loop.


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_async_job_waits_for_the_transaction_of_djangos_thread(
    queue: str, hand: Hand, ends: str
) -> None:
    async def serve() -> Job[int]:
        @sync_to_async
        def enter() -> Any:
            block = transaction.atomic()
            block.__enter__()
            return block

        @sync_to_async
        def leave(block: Any) -> None:
            if ends == "rollback":
                transaction.set_rollback(True)
            block.__exit__(None, None, None)

        block = await enter()
        job: Job[int] = await aschedule(on(queue), LATER, 1)
        assert job.state is State.UNCOMMITTED
        assert hand.tokens() == []
        await leave(block)
        return job

    job = asyncio.run(serve())

    assert hand.tokens() == ([job.token] if ends == "commit" else [])


@pytest.mark.parametrize("how", ["one", "many", "batch"])
@pytest.mark.parametrize("is_written", [False, True])
def test_on_the_event_loop_only_a_written_on_commit_waits(
    queue: str, hand: Hand, how: str, is_written: bool
) -> None:
    callback, *jobs = prepared(queue, 3, **({"on_commit": True} if is_written else {}))
    task = samples.add.using(queue=queue, **({"on_commit": True} if is_written else {}))

    async def serve() -> int:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        if how == "one":
            await task.aschedule(LATER, 1)
        elif how == "many":
            await aschedule_many(jobs)
        else:
            await Batch(callback).aschedule(jobs)
        sent = len(hand.tokens())
        await sync_to_async(block.__exit__)(None, None, None)
        return sent

    count = 1 if how == "one" else 2
    assert asyncio.run(serve()) == (0 if is_written else count)
    assert len(hand.tokens()) == count
