"""A queue with MAX_JOBS: what a full one refuses, what it takes all the same, and what callers are told."""

import asyncio
import pickle
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from redis.exceptions import ConnectionError

from django_delayq import (
    Batch,
    Job,
    MaybeScheduled,
    QueueFull,
    State,
    aschedule,
    aschedule_many,
    schedule,
    schedule_many,
)
from django_delayq.jobs import commit_hooks
from django_delayq.jobs import send_many as sending_many
from django_delayq.transport.recovery import PAUSES_S
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.servers import Server

twins = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def limit(settings: Any, queue: str) -> Any:
    """Sets MAX_JOBS of the queue, with other options of it if given."""

    def set_limit(jobs: int, **options: Any) -> None:
        queues = {queue: {"MAX_JOBS": jobs, **options}, f"{queue}-2": {}}
        settings.DELAYQ = settings.DELAYQ | {"QUEUES": queues}

    return set_limit


def on(queue: str) -> Any:
    return samples.add.using(queue=queue)


def fill(queue: str, count: int) -> None:
    """Send jobs that wait for no commit."""
    task = on(queue).using(on_commit=False)
    schedule_many(task.prepare(LATER, 100 + n) for n in range(count))


def send(task: Any, is_async: bool, n: int = 1) -> Job[Any]:
    if is_async:
        return asyncio.run(aschedule(task, LATER, n))
    return schedule(task, LATER, n)


def send_many(jobs: Iterable[Job[Any]], is_async: bool) -> list[Job[Any]]:
    if is_async:
        return asyncio.run(aschedule_many(jobs))
    return schedule_many(jobs)


# One job.


@twins
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"INSERTION_LIST": True},
        {"FRAME": "dLc0"},
        {"FRAME": "dLc0", "INSERTION_LIST": True},
        {"REDISSON": "3.16.6"},
        {"REDISSON": "3.52.0", "CODEC": "StringCodec"},
    ],
    ids=str,
)
@pytest.mark.parametrize("task", [samples.add, samples.once], ids=["plain", "unique"])
def test_full_queue_refuses_a_job_and_says_what_to_do(
    queue: str, hand: Hand, limit: Any, options: Any, task: Any, is_async: bool
) -> None:
    limit(2, **options)
    for n in range(2):
        send(task.using(queue=queue), is_async, n)
    before = hand.tokens()

    with pytest.raises(QueueFull) as full:
        send(task.using(queue=queue), is_async, 2)

    error = full.value
    assert (error.queue, error.count, error.limit) == (queue, 2, 2)
    assert str(error) == (
        f"queue {queue!r} has no room for another job: it holds 2 that wait or run, and"
        f" DELAYQ['QUEUES'][{queue!r}]['MAX_JOBS'] is 2. Pass error.unsent to schedule_many once workers have made"
        " room, start more workers, or raise MAX_JOBS"
    )
    (job,) = error.unsent
    assert (error.scheduled, error.unknown) == ([], [])
    assert (job.state, job.start_time, job.created) == (State.UNCOMMITTED, None, True)
    assert job.is_unsent
    assert hand.tokens() == before


@twins
def test_refused_job_is_sent_again_once_there_is_room(
    queue: str, hand: Hand, limit: Any, is_async: bool
) -> None:
    limit(1)
    first = send(on(queue), is_async)
    with pytest.raises(QueueFull) as full:
        send(on(queue), is_async)
    with pytest.raises(QueueFull):
        send_many(full.value.unsent, is_async)
    assert first.cancel()

    (job,) = send_many(full.value.unsent, is_async)

    assert job.state is State.SCHEDULED
    assert hand.tokens() == [job.token]


def test_error_can_be_pickled(queue: str, limit: Any) -> None:
    limit(1)
    schedule(on(queue), LATER, 1)
    with pytest.raises(QueueFull) as full:
        schedule(on(queue), LATER, 2)

    error = pickle.loads(pickle.dumps(full.value))

    assert (str(error), error.count, error.unsent) == (
        str(full.value),
        1,
        full.value.unsent,
    )


def test_job_that_finds_the_holder_of_its_key_is_not_refused(
    queue: str, hand: Hand, limit: Any
) -> None:
    limit(1)
    holder = schedule(samples.once.using(queue=queue), LATER, 1)

    job = schedule(samples.once.using(queue=queue), LATER, 1)

    assert (job, job.created) == (holder, False)
    assert hand.tokens() == [holder.token]


@twins
def test_repeat_of_a_stored_job_is_not_refused(
    settings: Any, server: Server, queue: str, limit: Any, hand: Hand, is_async: bool
) -> None:
    limit(1)
    proxy = Proxy(server)
    try:
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
        send(on(queue), is_async).cancel()
        lost = proxy.lose_reply_to(b"tests.jobs.samples.add")

        job = send(on(queue), is_async)

        assert lost.is_set()
        assert hand.start_times() == {job.token: job.start_time_ms}
    finally:
        proxy.close()


@twins
def test_job_of_a_lost_call_that_a_full_queue_refuses_can_be_sent_at_any_time(
    settings: Any, server: Server, queue: str, limit: Any, hand: Hand, is_async: bool
) -> None:
    """The refusal says that the server does not know the job, so nothing can be stored twice."""
    limit(1)
    proxy = Proxy(server)
    try:
        direct = settings.DELAYQ
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
        send(on(queue), is_async).cancel()
        job = on(queue).prepare(LATER, 1)
        proxy.lose(b"tests.jobs.samples.add", 1 + len(PAUSES_S))
        with pytest.raises(MaybeScheduled) as lost:
            send_many([job], is_async)
        assert lost.value.unknown == [job]
        settings.DELAYQ = direct
        first = send(on(queue), is_async)

        with pytest.raises(QueueFull) as full:
            send_many([job], is_async)

        assert (full.value.unsent, full.value.unknown) == ([job], [])
        assert job.is_unsent
        first.cancel()
        assert send_many([job], is_async) == [job]
        assert hand.tokens() == [job.token]
    finally:
        proxy.close()


# Many jobs.


@twins
def test_many_jobs_are_stored_by_whole_calls_and_the_others_named(
    queue: str, hand: Hand, limit: Any, is_async: bool
) -> None:
    limit(1_200)
    jobs = [on(queue).prepare(LATER, n) for n in range(3_000)]

    with pytest.raises(QueueFull) as full:
        send_many(jobs, is_async)

    error = full.value
    assert (error.queue, error.count, error.limit) == (queue, 1_000, 1_200)
    assert error.scheduled == jobs[:1_000]
    assert error.unsent == jobs[1_000:]
    assert error.unknown == []
    assert str(error) == (
        "1000 of 3000 jobs are scheduled, 2000 are not: "
        f"queue {queue!r} has no room for 500 more jobs: it holds 1,000 that wait or run, and"
        f" DELAYQ['QUEUES'][{queue!r}]['MAX_JOBS'] is 1,200. Pass error.unsent to schedule_many once workers have made"
        " room, start more workers, or raise MAX_JOBS"
    )
    assert all(job.is_unsent and job.state is State.UNCOMMITTED for job in error.unsent)
    assert hand.tokens() == [job.token for job in jobs[:1_000]]
    limit(3_000)
    assert send_many(error.unsent, is_async) == jobs[1_000:]
    assert hand.tokens() == [job.token for job in jobs]


@twins
def test_a_queue_smaller_than_a_call_is_filled_to_its_limit(
    queue: str, hand: Hand, limit: Any, is_async: bool
) -> None:
    limit(7)
    jobs = [on(queue).prepare(LATER, n) for n in range(20)]

    with pytest.raises(QueueFull) as full:
        send_many(jobs, is_async)

    assert full.value.scheduled == jobs[:7]
    assert full.value.unsent == jobs[7:]
    assert hand.tokens() == [job.token for job in jobs[:7]]


@twins
def test_after_a_refusal_no_further_call_is_made(
    queue: str, hand: Hand, limit: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(1)
    send(on(queue), is_async)
    jobs = [on(queue).prepare(LATER, n) for n in range(100)]
    made: list[str] = []
    call = sending_many.storing_all

    def counted(queue: str, *args: Any) -> Any:
        made.append(queue)
        return call(queue, *args)

    monkeypatch.setattr(sending_many, "storing_all", counted)

    with pytest.raises(QueueFull) as full:
        send_many(jobs, is_async)

    assert len(made) == 1
    assert full.value.unsent == jobs


@twins
def test_full_queue_among_others_is_told_with_what_each_took(
    queue: str, hand: Hand, limit: Any, is_async: bool
) -> None:
    limit(1)
    send(on(queue), is_async)
    other = on(f"{queue}-2").prepare(LATER, 1)
    job = on(queue).prepare(LATER, 2)
    last = on(f"{queue}-2").prepare(LATER, 3)

    with pytest.raises(QueueFull) as full:
        send_many([other, job, last], is_async)

    error = full.value
    assert error.queue == queue
    # The last call may be under way when the reply to the one before comes.
    assert [*error.scheduled, *error.unsent] in ([other, job, last], [other, last, job])
    assert {state for state in (job.state, other.state)} == {
        State.UNCOMMITTED,
        State.SCHEDULED,
    }


@twins
def test_failing_iterable_of_a_full_queue_is_told_with_it(
    queue: str, limit: Any, is_async: bool
) -> None:
    limit(1)
    send(on(queue), is_async)
    jobs = [on(queue).prepare(LATER, n) for n in range(10)]

    def failing() -> Iterator[Job[Any]]:
        yield from jobs
        raise ValueError("no more")

    with pytest.raises((QueueFull, ValueError)) as full:
        send_many(failing(), is_async)

    if isinstance(full.value, QueueFull):
        assert full.value.unsent == jobs


@twins
def test_repeat_with_new_jobs_among_it_stores_nothing_twice(
    settings: Any, server: Server, queue: str, limit: Any, hand: Hand, is_async: bool
) -> None:
    limit(2)
    proxy = Proxy(server)
    try:
        direct = settings.DELAYQ
        settings.DELAYQ = settings.DELAYQ | {"CONNECTION": proxy.url}
        send(on(queue), is_async).cancel()
        lost = [on(queue).prepare(LATER, n) for n in range(2)]
        proxy.lose_reply_to(b"tests.jobs.samples.add", refuse=True)
        with pytest.raises(MaybeScheduled):
            send_many(lost, is_async)
        settings.DELAYQ = direct
        new = on(queue).prepare(LATER, 3)

        # Calls of a queue that holds two have two jobs, so raise that.
        limit(3)
        schedule(on(queue), LATER, 4)
        with pytest.raises(QueueFull) as full:
            send_many([*lost, new], is_async)

        assert (full.value.scheduled, full.value.unsent) == (lost, [new])
        assert [job.state for job in lost] == [State.SCHEDULED] * 2
        assert len(hand.tokens()) == 3
    finally:
        proxy.close()


def test_job_that_comes_twice_and_is_refused_once_is_stored_once(
    queue: str, hand: Hand, limit: Any
) -> None:
    limit(1)
    blocker = schedule(on(queue), LATER, 1)
    first = on(f"{queue}-2").prepare(LATER, 2)
    twice = on(queue).prepare(LATER, 3)

    def counted() -> int:
        return int(hand.node.info("commandstats")["cmdstat_zcard"]["calls"])

    def jobs() -> Iterator[Job[Any]]:
        yield first
        before = counted()
        yield twice
        yield twice
        # The first of them is refused by now, and its reply not read.
        wait_until(lambda: counted() >= before + 5, description="it is refused")
        blocker.cancel()

    with pytest.raises(QueueFull) as full:
        schedule_many(jobs())

    assert full.value.scheduled == [first, twice]
    assert twice.was_sent
    assert schedule_many(full.value.unsent) == [twice]
    assert hand.tokens() == [twice.token]
    assert twice.cancel()
    assert hand.tokens() == []


def test_producers_side_by_side_fill_a_queue_to_its_limit(
    queue: str, hand: Hand, limit: Any
) -> None:
    limit(1_000)
    stored: list[Job[Any]] = []
    refused: list[Job[Any]] = []

    def produce(is_many: bool) -> None:
        task = on(queue)
        for n in range(40):
            try:
                if is_many:
                    jobs = [task.prepare(LATER, n) for _ in range(5)]
                    stored.extend(schedule_many(jobs))
                else:
                    stored.extend([schedule(task, LATER, n) for _ in range(5)])
            except QueueFull as error:
                refused.extend(error.unsent)

    threads = [threading.Thread(target=produce, args=[n % 2 == 0]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(hand.tokens()) == 1_000
    assert {job.token for job in stored} <= set(hand.tokens())
    assert refused
    assert not {job.token for job in refused} & set(hand.tokens())


# What a commit has promised.


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestOnCommit:
    @pytest.mark.parametrize("on_commit", [True, "other"])
    def test_job_that_a_commit_has_promised_is_stored_in_a_full_queue(
        self, queue: str, hand: Hand, limit: Any, on_commit: bool | str
    ) -> None:
        limit(3)
        task = on(queue).using(on_commit=on_commit)
        using = None if on_commit is True else str(on_commit)

        with transaction.atomic(using=using):
            jobs = [schedule(task, LATER, n) for n in range(3)]
            # Another process fills the queue meanwhile.
            fill(queue, 3)

        assert {job.token for job in jobs} < set(hand.tokens())
        assert len(hand.tokens()) == 6

    @pytest.mark.parametrize("is_batch", [False, True])
    def test_jobs_that_a_commit_has_promised_are_stored_in_a_full_queue(
        self, queue: str, hand: Hand, limit: Any, is_batch: bool
    ) -> None:
        limit(3)
        jobs = [on(queue).prepare(LATER, n) for n in range(2)]

        with transaction.atomic():
            if is_batch:
                Batch(on(queue).prepare(0, 9)).schedule(jobs)
            else:
                schedule_many(jobs)
            fill(queue, 3)

        assert {job.token for job in jobs} < set(hand.tokens())

    def test_full_queue_refuses_a_job_where_it_is_scheduled(
        self, queue: str, hand: Hand, limit: Any
    ) -> None:
        limit(1)
        fill(queue, 1)

        with transaction.atomic():
            with pytest.raises(QueueFull) as full:
                schedule(on(queue), LATER, 2)

        assert full.value.unsent[0].is_unsent
        assert len(hand.tokens()) == 1

    def test_jobs_of_the_same_transaction_count(
        self, queue: str, hand: Hand, limit: Any
    ) -> None:
        limit(3)

        with transaction.atomic():
            with transaction.atomic():
                schedule_many(on(queue).prepare(LATER, n) for n in range(3))
                with pytest.raises(QueueFull):
                    schedule(on(queue), LATER, 3)
                transaction.set_rollback(True)
            schedule(on(queue), LATER, 4)
            with pytest.raises(QueueFull) as full:
                schedule_many(on(queue).prepare(LATER, n) for n in range(3))
            assert (full.value.count, len(full.value.unsent)) == (1, 3)
            with pytest.raises(QueueFull) as full:
                Batch(on(queue).prepare(0, 9)).schedule(
                    on(queue).prepare(LATER, n) for n in range(2)
                )
            assert len(full.value.unsent) == 2, "the callback takes a place as well"

        assert len(hand.tokens()) == 1

    @twins
    def test_refusal_of_many_leaves_no_other_job_to_a_commit(
        self, queue: str, hand: Hand, limit: Any, is_async: bool
    ) -> None:
        limit(3)
        first = on(f"{queue}-2").using(on_commit="other").prepare(LATER, 0)
        now = on(f"{queue}-2").using(on_commit=False).prepare(LATER, 1)
        task = on(queue).using(on_commit=True)
        many = [task.prepare(LATER, n) for n in range(4)]
        jobs = [first, now, *many]

        with transaction.atomic(), transaction.atomic(using="other"):
            with pytest.raises(QueueFull) as full:
                # In the thread of the transaction, as a view of Django's has it.
                async_to_sync(aschedule_many)(jobs) if is_async else schedule_many(jobs)
            assert not any(job.awaits_commit for job in jobs)

        error = full.value
        assert (error.scheduled, error.unsent) == ([now], [first, *many])
        assert "1 of 6 jobs are scheduled, 5 are not" in str(error)
        assert [job.state for job in jobs] == [
            State.UNCOMMITTED,
            State.SCHEDULED,
            *[State.UNCOMMITTED] * 4,
        ]
        assert schedule_many([first, *many[:3]]) == [first, *many[:3]]

    def test_lost_reply_of_a_queue_that_is_asked_says_that_nothing_is_stored(
        self, monkeypatch: pytest.MonkeyPatch, queue: str, limit: Any
    ) -> None:
        def lose(*args: Any) -> None:
            raise ConnectionError("the reply is lost")

        limit(3)
        monkeypatch.setattr(commit_hooks, "run", lose)

        with transaction.atomic():
            with pytest.raises(ConnectionError) as failure:
                schedule(on(queue), LATER, 1)

        assert "not stored" in "".join(failure.value.__notes__)

    def test_jobs_that_the_commit_will_not_store_do_not_count(
        self, queue: str, hand: Hand, limit: Any
    ) -> None:
        limit(3)

        with transaction.atomic():
            cancelled = schedule(on(queue), LATER, 1)
            assert cancelled.cancel()
            for _ in range(3):
                schedule(samples.once.using(queue=queue), LATER, 5)
            jobs = [schedule(on(queue), LATER, n) for n in range(2)]
            with pytest.raises(QueueFull, match=r"holds 0 .* 3 come with the") as full:
                schedule(on(queue), LATER, 3)

        assert full.value.count == 3
        assert {job.token for job in jobs} < set(hand.tokens())
        assert len(hand.tokens()) == 3

    def test_job_with_a_unique_key_is_not_refused_before_the_commit(
        self, queue: str, limit: Any
    ) -> None:
        limit(1)
        task = samples.once.using(queue=queue)
        first = task.schedule(LATER, 5)

        with transaction.atomic():
            again = task.schedule(LATER, 5)

        assert (again.created, again.id) == (False, first.id)

    def test_outside_a_transaction_nothing_is_promised(
        self, queue: str, hand: Hand, limit: Any
    ) -> None:
        limit(1)
        task = on(queue).using(on_commit=True)
        schedule(task, LATER, 1)

        with pytest.raises(QueueFull) as full:
            schedule(task, LATER, 2)

        assert full.value.unsent[0].is_unsent
        assert len(hand.tokens()) == 1

    def test_in_the_transaction_of_another_database_nothing_is_promised(
        self, queue: str, limit: Any
    ) -> None:
        limit(1)
        task = on(queue).using(on_commit="other")

        with transaction.atomic():
            schedule(task, LATER, 1)
            with pytest.raises(QueueFull):
                schedule(task, LATER, 2)

    def test_in_a_transaction_a_job_that_does_not_wait_for_it_is_refused(
        self, queue: str, limit: Any
    ) -> None:
        limit(1)
        task = on(queue).using(on_commit=False)

        with transaction.atomic():
            schedule(task, LATER, 1)
            with pytest.raises(QueueFull):
                schedule(task, LATER, 2)

    def test_promised_job_whose_commit_could_not_send_it_is_limited_like_others(
        self, settings: Any, server: Server, queue: str, hand: Hand, limit: Any
    ) -> None:
        limit(1)
        direct = settings.DELAYQ
        jobs = []

        def commit_without_a_server() -> None:
            with transaction.atomic():
                jobs.append(schedule(on(queue), LATER, 2))
                fill(queue, 1)
                settings.DELAYQ = direct | {"CONNECTION": "unix:///nowhere"}

        with pytest.raises(ConnectionError):
            commit_without_a_server()
        settings.DELAYQ = direct

        with pytest.raises(QueueFull):
            schedule_many(jobs)

        assert len(hand.tokens()) == 1
