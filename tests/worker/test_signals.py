"""Signals about jobs, as workers inside this process send them."""

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest

from django_delayq import (
    Backoff,
    Cancel,
    Retry,
    Snooze,
    current_job,
    delayed_task,
    schedule,
    signals,
)
from django_delayq.clients.clients import own_clients
from django_delayq.delivery.states import State
from django_delayq.worker.attempt import Attempt
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


@pytest.fixture
def heard():
    """Every signal that is sent: its name, sender, job's id, job's state, and the other arguments."""
    said = []

    def hear(signal, sender, job, **named):
        said.append((signal.name, sender, job, job.state, named))

    for signal in ATTEMPT:
        signal.connect(hear, weak=False)
    yield said
    for signal in ATTEMPT:
        signal.disconnect(hear)


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
        told.append((job.task, signal.name, threading.get_ident(), current_job() == job))

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
    monkeypatch.setattr(
        Attempt, "job", lambda self: made.append(self.id) or real(self)
    )

    @delayed_task(queue=queue_name, keep_result=60)
    def succeed():
        return 1

    with connected(signals.job_dead, lambda **kwargs: None):
        job = schedule(succeed, 0)
        work()
        assert job.wait(30) == 1

    assert made == []
