"""Signals about jobs, as workers inside this process send them."""

import asyncio
import os
import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from django.db import transaction

from django_delayq import (
    Backoff,
    Batch,
    Cancel,
    Retry,
    Snooze,
    aschedule_many,
    current_job,
    delayed_task,
    every,
    find_jobs,
    schedule,
    schedule_many,
    signals,
    store_schedule,
)
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core.states import State
from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs import registry
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker import held_jobs
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.claims import MOST_TOLD
from tests.polling import wait_until

ATTEMPT = [
    signals.job_started,
    signals.job_succeeded,
    signals.job_retried,
    signals.job_dead,
    signals.job_expired,
    signals.job_quarantined,
    signals.job_cancelled,
]


@contextmanager
def connected(signal, receiver):
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def listening(to):
    """Collect the signals that are sent: name, sender, job, the job's state then, and the other arguments."""
    said = []

    def hear(signal, sender, job, **named):
        said.append((signal.name, sender, job, job.state, named))

    with ExitStack() as stack:
        for signal in to:
            stack.enter_context(connected(signal, hear))
        yield said


@pytest.fixture
def heard():
    """What is told of attempts."""
    yield from listening(ATTEMPT)


def names(heard):
    return [name for name, *_ in heard]


def wait_heard(heard, *wanted):
    wait_until(lambda: len(heard) >= len(wanted), description=f"{wanted} are heard")
    assert names(heard) == list(wanted)
    return heard[-1]


@pytest.mark.parametrize("is_async", [False, True])
def test_start_and_success_have_task_job_and_result(work, queue_name, heard, is_async):
    @delayed_task(queue=queue_name)
    def add(a, b):
        return a + b

    @delayed_task(queue=queue_name)
    async def add_async(a, b):
        return a + b

    task = add_async if is_async else add
    job = schedule(task, 0, 1, b=2)

    work()

    _, sender, ended, state, named = wait_heard(heard, "job_started", "job_succeeded")
    assert (sender, ended, state, named) == (task, job, State.SUCCEEDED, {"result": 3})
    assert heard[0][1:4] == (task, job, State.RUNNING)
    assert (ended.args, ended.kwargs) == ([1], {"b": 2})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_retry_and_a_death_have_the_exception_and_the_reason(
    work, queue_name, heard, is_async
):
    def fail():
        raise ValueError("as told")

    async def fail_async():
        raise ValueError("as told")

    task = delayed_task(queue=queue_name, max_attempts=2, name="fails")(
        fail_async if is_async else fail
    )
    job = schedule(task.using(backoff=Backoff(base=0.1, factor=1, jitter=0)), 0)

    work()

    wait_heard(heard, "job_started", "job_retried", "job_started", "job_dead")
    retried, dead = heard[1], heard[3]
    assert retried[4]["retry_in"] == timedelta(seconds=0.1)
    assert retried[4]["reason"] == dead[4]["reason"] == "ValueError: as told"
    assert isinstance(retried[4]["exception"], ValueError)
    assert isinstance(dead[4]["exception"], ValueError)
    assert (retried[2], retried[3], retried[2].attempts) == (job, State.RETRYING, 1)
    assert (dead[2], dead[3], dead[2].attempts) == (job, State.DEAD, 2)


def test_decisions_of_a_task_are_told_and_a_snooze_is_not(work, queue_name, heard):
    @delayed_task(queue=queue_name, name="decides")
    def decide(what):
        if what == "snooze" and not snoozed:
            snoozed.append(1)
            raise Snooze(0)
        if what == "retry" and not current_job().attempts:
            raise Retry(0, reason="later")
        if what == "cancel":
            raise Cancel("not wanted")

    snoozed = []
    work(threads=1)
    for what in ("snooze", "retry", "cancel"):
        heard.clear()
        schedule(decide, 0, what)
        last = {"snooze": "job_succeeded", "retry": "job_succeeded"}.get(
            what, "job_cancelled"
        )
        wait_until(lambda last=last: last in names(heard), description=f"{what} ended")
        told = [each for each in heard if each[0] != "job_started"]
        if what == "snooze":
            assert names(told) == ["job_succeeded"]
        elif what == "retry":
            assert names(told) == ["job_retried", "job_succeeded"]
            assert isinstance(told[0][4]["exception"], Retry)
        else:
            assert told[0][3] is State.CANCELLED
            assert told[0][4]["reason"] == "not wanted"


def test_a_job_that_is_too_late_is_told_as_expired_or_as_dead(work, queue_name, heard):
    @delayed_task(queue=queue_name, expires=0.001, name="late")
    def late():
        raise AssertionError("too late")

    dropped = schedule(late, 0)
    buried = schedule(late.using(on_expiry="dead"), 0)
    wait_until(lambda: dropped.refresh() is State.DUE, description="it is due")
    wait_until(lambda: is_late(buried, 50), description="both are late")

    work()

    wait_until(lambda: len(heard) == 2, description="both are told")
    found = {name: (sender, job, named) for name, sender, job, _, named in heard}
    assert found["job_expired"][:2] == (late, dropped)
    assert found["job_dead"][:2] == (late, buried)
    assert "too late to matter" in found["job_expired"][2]["reason"]
    assert "too late to matter" in found["job_dead"][2]["reason"]
    assert found["job_dead"][2]["exception"] is None


def is_late(job, ms):
    seconds, micros = own_clients.of_thread().time()
    return seconds * 1000 + micros / 1000 > job.start_time_ms + ms


def test_what_cannot_be_read_is_told_as_quarantined_without_a_task(
    work, configure, queue_name, heard
):
    configure(worker={"HOLD_UNKNOWN": 0})
    own_clients.of_thread().rpush(queue_name, b"not a job")

    work()

    _, sender, job, state, named = wait_heard(heard, "job_quarantined")
    assert (sender, job.task, state) == (None, None, State.QUARANTINED)
    assert "no handler" in named["reason"]
    assert named["exception"] is not None


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [ValueError("of a receiver"), SystemExit(3)])
def test_a_receiver_that_raises_is_logged_with_the_job_and_changes_nothing(
    work, queue_name, caplog, is_async, error
):
    def fail(**kwargs):
        raise error

    ran = []

    @delayed_task(queue=queue_name, keep_result=60)
    def succeed():
        ran.append(1)
        return "done"

    @delayed_task(queue=queue_name, keep_result=60)
    async def succeed_async():
        ran.append(1)
        return "done"

    with (
        connected(signals.job_started, fail),
        connected(signals.job_succeeded, fail),
    ):
        job = schedule(succeed_async if is_async else succeed, 0)
        worker = work()

        assert job.wait(30) == "done"
        wait_until(
            lambda: len([r for r in caplog.records if job.id in r.getMessage()]) >= 2,
            description="both are logged",
        )

    told = [r for r in caplog.records if "changes nothing" in r.getMessage()]
    assert [r.levelname for r in told] == ["ERROR", "ERROR"]
    assert "job_started raised" in told[0].getMessage()
    assert type(error).__name__ in told[0].getMessage()
    assert told[0].exc_info[1] is error
    assert ran == [1]
    assert worker.is_running


def test_receivers_of_a_sync_task_run_in_its_thread_and_of_an_async_one_on_the_loop(
    work, queue_name
):
    told = []

    def hear(signal, job, **kwargs):
        told.append(
            (job.task, signal.name, threading.get_ident(), current_job() == job)
        )

    async def hear_async(signal, job, **kwargs):
        told.append((job.task, "async", threading.get_ident(), current_job() == job))

    @delayed_task(queue=queue_name, name="in-thread")
    def in_thread():
        told.append(("in-thread", "task", threading.get_ident(), True))

    @delayed_task(queue=queue_name, name="on-loop")
    async def on_loop():
        told.append(("on-loop", "task", threading.get_ident(), True))
        await asyncio.sleep(0)

    with (
        connected(signals.job_started, hear),
        connected(signals.job_succeeded, hear),
    ):
        work()
        schedule(in_thread, 0)
        wait_until(lambda: len(told) == 3, description="the sync one has ended")
    with connected(signals.job_succeeded, hear_async):
        schedule(on_loop, 0)
        wait_until(lambda: len(told) == 5, description="the async one has ended")

    assert len({thread for _, _, thread, _ in told[:3]}) == 1
    assert len({thread for _, _, thread, _ in told[3:]}) == 1
    assert all(is_current for *_, is_current in told)


def test_without_receivers_no_handle_is_made(work, queue_name, monkeypatch):
    made = []
    real = Attempt.job
    monkeypatch.setattr(Attempt, "job", lambda self: made.append(self.id) or real(self))

    @delayed_task(queue=queue_name, keep_result=60)
    def succeed():
        return 1

    with connected(signals.job_dead, lambda **kwargs: None):
        job = schedule(succeed, 0)
        work()
        assert job.wait(30) == 1

    assert made == []


OF_CALLS = [signals.job_scheduled, signals.job_cancelled, signals.job_quarantined]


@pytest.fixture
def told():
    """What is told by calls of this process, and by the worker's own thread."""
    yield from listening(OF_CALLS)


def jobs_of(told, name):
    return [job for each, _, job, *_ in told if each == name]


@pytest.fixture
def noop(queue_name):
    @delayed_task(queue=queue_name, name="noop")
    def noop(n=0):
        return n

    return noop


def test_what_a_call_stores_is_told_by_that_call(configure, told, noop, queue_name):
    first = schedule(noop, 600, 1)
    assert told == [("job_scheduled", noop, first, State.SCHEDULED, {})]

    many = schedule_many(noop.prepare(600, n) for n in range(3))
    assert jobs_of(told, "job_scheduled") == [first, *many]

    last = asyncio.run(noop.using(max_attempts=1).aschedule(600))
    some = asyncio.run(aschedule_many([noop.prepare(600)]))
    assert jobs_of(told, "job_scheduled") == [first, *many, last, *some]
    assert {sender for _, sender, *_ in told} == {noop}


def test_a_call_that_finds_the_holder_of_its_key_tells_nothing(configure, told, noop):
    task = noop.using(unique=True)
    first, second = schedule(task, 600, 1), schedule(task, 600, 1)
    third, fourth = schedule_many([task.prepare(600, 2), task.prepare(600, 2)])

    assert not second.created
    assert (first, third) == (second, fourth)
    assert jobs_of(told, "job_scheduled") == [first, third]


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_it_is_told_after_the_commit(configure, told, noop):
    with transaction.atomic():
        job = noop.schedule(600)
        assert told == []

    assert jobs_of(told, "job_scheduled") == [job]


def test_a_receiver_that_raises_leaves_the_call_alone(configure, noop, caplog):
    def fail(**kwargs):
        raise ValueError("of a receiver")

    with connected(signals.job_scheduled, fail):
        job = schedule(noop, 600)
        schedule_many([noop.prepare(600)])

    assert job.refresh() is State.SCHEDULED
    errors = [r for r in caplog.records if r.name == "django_delayq.signals"]
    assert len(errors) == 2
    assert job.id in errors[0].getMessage()
    assert f"{fail.__module__}.{fail.__qualname__}" in errors[0].getMessage()


def test_cancel_is_told_by_whoever_cancels(configure, told, noop, queue_name):
    jobs = schedule_many(noop.prepare(600, n) for n in range(5))
    told.clear()

    assert jobs[0].cancel()
    assert asyncio.run(jobs[1].acancel())
    assert find_jobs(queue=queue_name, task=noop).cancel().won == 3

    assert sorted(jobs_of(told, "job_cancelled"), key=lambda job: job.args) == jobs
    assert {state for *_, state, _ in told} == {State.CANCELLED}
    assert {named["reason"] for *_, named in told} == {"by a call of cancel()"}


def test_jobs_that_a_worker_stores_are_told_by_it(
    work, configure, told, noop, queue_name
):
    configure(other={})
    other = f"{queue_name}-other"
    follower, elsewhere = noop.prepare(600, 1), noop.using(queue=other).prepare(600, 2)
    (first,) = schedule_many([noop.prepare(0, 0).then(follower, elsewhere)])
    assert jobs_of(told, "job_scheduled") == [first]

    work()

    wait_until(lambda: len(told) == 3, description="the followers are told")
    assert set(jobs_of(told, "job_scheduled")) == {first, follower, elsewhere}
    assert sorted(job.args for job in jobs_of(told, "job_scheduled")) == [[0], [1], [2]]


def test_the_callback_of_a_batch_is_told_once_all_its_jobs_are_stored(
    configure, told, noop
):
    callback = noop.prepare(0, 9)
    jobs = Batch(callback).schedule([noop.prepare(600, n) for n in range(2)])

    assert jobs_of(told, "job_scheduled") == [*jobs, callback]


def test_a_moment_of_a_periodic_schedule_is_told_when_its_job_is_stored(
    work, told, noop, queue_name
):
    store_schedule("often", noop, every(timedelta(milliseconds=1000)), queue=queue_name)

    work()

    wait_until(
        lambda: any(job.schedule_name for job in jobs_of(told, "job_scheduled")),
        description="the job of a moment is told",
    )


def lose(queue_name, *, times):
    """Claim the due jobs as workers do that die."""
    keys = get_settings().queue(queue_name).keys
    client = own_clients.of_thread()
    for _ in range(times):
        owner = os.urandom(8)

        def claim(owner=owner):
            call = claim_calls.claim(
                keys, owner=owner, request=os.urandom(8), limit=10, lease_ms=60_000
            )
            return run(client, call).jobs

        assert len(wait_until(claim, description="the job is due")) == 1
        assert run(client, claim_calls.recover(keys, owner=owner)).ended == 1


def test_a_job_that_lost_its_worker_too_often_is_told_as_dead_by_who_buries_it(
    work, queue_name, noop, heard
):
    job = schedule(noop, 0, 1)
    lose(queue_name, times=2)

    work(max_kills=1)

    _, sender, dead, state, named = wait_heard(heard, "job_dead")
    assert (sender, dead, dead.args, state) == (noop, job, [1], State.DEAD)
    assert "its worker died or lost the lease 2 times" in named["reason"]
    assert named["exception"] is None
    wait_until(lambda: job.refresh() is State.DEAD, description="it is buried")


def test_a_receiver_that_kills_each_worker_is_not_called_for_ever(
    work, queue_name, noop, heard
):
    job = schedule(noop, 0)
    lose(queue_name, times=2 + MOST_TOLD)

    work(max_kills=1)

    wait_until(lambda: job.refresh() is State.DEAD, description="it is buried")
    assert heard == []


def test_what_a_claim_ends_is_told_by_the_workers_own_thread(
    work, queue_name, noop, told
):
    keys = get_settings().queue(queue_name).keys
    own_clients.of_thread().zadd(keys.queue.timeout_set, {b"bad frame": 1})

    work()

    wait_until(lambda: told, description="it is told")
    ((name, sender, job, state, named),) = told
    assert (name, sender, job.task) == ("job_quarantined", None, None)
    assert (state, job.refresh()) == (State.QUARANTINED, State.QUARANTINED)
    assert named == {"reason": "nobody can read its frame", "exception": None}


def test_a_job_that_was_held_for_too_long_is_told_as_quarantined(
    work, configure, queue_name, noop, told, monkeypatch
):
    configure(worker={"HOLD_UNKNOWN": 0.001})
    job = schedule(noop, 0)
    told.clear()
    monkeypatch.delitem(registry._tasks, "noop")
    monkeypatch.setattr(held_jobs, "LOOK_AT_HELD_MS", 10.0)

    work(cap_ms=20)

    wait_until(lambda: told, description="it is told")
    ((name, sender, quarantined, _, named),) = told
    assert (name, sender, quarantined) == ("job_quarantined", None, job)
    assert quarantined.task == "noop"
    assert "no worker that can run it came in time" in named["reason"]


def test_a_task_that_ignores_its_time_limit_is_told_before_its_process_ends(
    work, queue_name, heard, monkeypatch
):
    monkeypatch.setattr("django_delayq.worker.time_limit.STUCK_AFTER_S", 0.1)
    gate = threading.Event()

    @delayed_task(queue=queue_name, time_limit=0.5, max_attempts=1, name="ignores")
    def ignore():
        # No line of Python runs in this wait, so no exception can end it.
        gate.wait(60)

    job = schedule(ignore, 0)
    try:
        worker = work()
        worker.join()
    finally:
        gate.set()

    assert [(name, told) for name, _, told, *_ in heard] == [
        ("job_started", job),
        ("job_dead", job),
    ]
    assert isinstance(heard[1][4]["exception"], TimeLimitExceeded)
