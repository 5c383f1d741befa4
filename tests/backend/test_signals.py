"""Django's signals about tasks: who hears of what, once, and in which state; and Django's own log of them."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from redis.exceptions import ResponseError

from django_delayq import get_job, pause, resume
from django_delayq.backend import DelayqBackend, running, upstream
from django_delayq.backend import finished_signal as ends
from django_delayq.backend.upstream import (
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from django_delayq.backoff import Backoff
from django_delayq.core.claim import EndedHere
from django_delayq.core.states import State
from django_delayq.exceptions import (
    JobCancelled,
    JobExpired,
    JobFailed,
    TimeLimitExceeded,
)
from django_delayq.jobs.registry import get_task
from django_delayq.signals import (
    heard,
    job_cancelled,
    job_dead,
    job_expired,
    job_quarantined,
)
from django_delayq.testing import FrozenQueue, frozen_queue, immediate
from django_delayq.testing.recorder import Recorder
from django_delayq.testing.servers import running_worker, serving_run
from django_delayq.worker import job_signals
from tests.backend import samples
from tests.polling import wait_until

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
SIGNALS = {
    "enqueued": task_enqueued,
    "started": task_started,
    "finished": task_finished,
}


class Heard(list[Any]):
    """What receivers heard: the signal's name, and the result as it was then."""

    def named(self, name: str) -> list[Any]:
        return [each for each in self if each[0] == name]


@pytest.fixture
def told() -> Iterator[Heard]:
    found = Heard()
    receivers = {}
    for name, signal in SIGNALS.items():

        def receive(
            sender: Any, task_result: Any, name: str = name, **named: Any
        ) -> None:
            assert sender is DelayqBackend
            classes = [error.exception_class for error in task_result.errors]
            found.append((name, task_result.status, task_result.attempts, classes))

        signal.connect(receive)
        receivers[name] = receive
    yield found
    for name, signal in SIGNALS.items():
        assert signal.disconnect(receivers[name])


@pytest.fixture
def listening(told: Heard) -> Iterator[Heard]:
    """Hear of the ends that no call sees, as a worker does."""
    before = heard.attempts
    ends.listen()
    yield told
    for signal in (job_cancelled, job_dead, job_expired, job_quarantined):
        assert signal.disconnect(dispatch_uid="django_delayq.backend")
    running.finishing.is_heard = False
    heard.attempts = before


READY, RUNNING, FAILED, SUCCESSFUL = TaskResultStatus


@pytest.mark.parametrize("name", ["add", "add_async"])
@pytest.mark.parametrize("hears", ["told", "listening"])
def test_success_is_told_in_three_steps(
    configure, queue_name, burst, request, hears, name
) -> None:
    found = request.getfixturevalue(hears)
    getattr(samples, name).using(queue_name=queue_name).enqueue(1)
    burst()

    assert found == [
        ("enqueued", READY, 0, []),
        ("started", RUNNING, 1, []),
        ("finished", SUCCESSFUL, 1, []),
    ]


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize("hears", ["told", "listening"])
def test_only_the_last_failure_is_told_as_the_end(
    configure, queue_name, burst, request, hears, name
) -> None:
    found = request.getfixturevalue(hears)
    task = getattr(samples, name).using(
        queue_name=queue_name, max_attempts=2, backoff=AT_ONCE
    )
    result = task.enqueue("x")
    wait_until(
        lambda: burst() or task.get_result(result.id).is_finished,
        description="the second attempt has failed",
    )

    (end,) = found.named("finished")
    assert len(found.named("started")) == 2
    assert end[:3] == ("finished", FAILED, 2)
    assert end[3][-1] is LookupError


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_django_logs_a_failure_with_its_traceback(
    configure, queue_name, burst, caplog, name
) -> None:
    getattr(samples, name).using(queue_name=queue_name, max_attempts=1).enqueue("x")
    burst()

    (record,) = [
        each
        for each in caplog.records
        if each.name == upstream.signals.logger.name and each.levelno == logging.ERROR
    ]
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


def test_django_logs_a_call_where_its_level_is_debug(
    configure, queue_name, caplog
) -> None:
    caplog.set_level(logging.DEBUG, upstream.signals.logger.name)

    result = samples.add.using(queue_name=queue_name).enqueue(1)

    assert f"id={result.id} path=tests.backend.samples.add enqueued" in caplog.text


def test_receiver_that_raises_changes_nothing(
    configure, queue_name, burst, caplog
) -> None:
    def raise_it(**named: Any) -> None:
        raise KeyError("receiver")

    for signal in SIGNALS.values():
        signal.connect(raise_it)
    try:
        result = samples.add.using(queue_name=queue_name).enqueue(1)
        burst()
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(raise_it)

    result.refresh()
    assert result.return_value == 1
    told = [each for each in caplog.records if each.name == "django.dispatch"]
    assert len(told) == 3
    assert all("raise_it" in each.getMessage() for each in told)


@pytest.mark.parametrize("name", ["add", "add_async", "fail", "fail_async"])
def test_task_that_is_told_has_the_queue_of_its_call(
    configure, queue_name, burst, listening, name
) -> None:
    queues = []

    def receive(task_result: Any, **named: Any) -> None:
        queues.append(task_result.task.queue_name)

    for signal in SIGNALS.values():
        signal.connect(receive)
    try:
        task = getattr(samples, name).using(
            queue_name=queue_name, max_attempts=2, backoff=AT_ONCE
        )
        result = task.enqueue("x")
        wait_until(
            lambda: burst() or task.get_result(result.id).is_finished,
            description="the task has ended",
        )
        waiting = task.using(run_after=timedelta(hours=1)).enqueue("x")
        get_job(waiting.id).cancel()
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(receive)

    told = [each[0] for each in listening]
    assert told[:2] == ["enqueued", "started"]
    assert told[-3:] == ["finished", "enqueued", "finished"]
    assert queues == [queue_name] * len(told)


async def test_async_call_is_told(configure, queue_name, told) -> None:
    await samples.add_async.using(queue_name=queue_name).aenqueue(1)

    assert told == [("enqueued", READY, 0, [])]


def test_expired_task_has_its_end(configure, queue_name, burst, listening) -> None:
    result = samples.add.using(queue_name=queue_name, expires=0.001).enqueue(1)
    job = get_job(result.id)
    wait_until(
        lambda: (timezone.now() - job.start_time).total_seconds() > 0.05,
        description="the job is too late",
    )
    burst()

    assert listening.named("finished") == [("finished", FAILED, 0, [JobExpired])]
    assert listening.named("started") == []


def test_cancelled_task_has_its_end(configure, queue_name, listening) -> None:
    result = samples.add.using(
        queue_name=queue_name, run_after=timedelta(hours=1)
    ).enqueue(1)

    get_job(result.id).cancel()

    assert listening.named("finished") == [("finished", FAILED, 0, [JobCancelled])]


@pytest.mark.parametrize("hears", ["told", "listening"])
def test_task_that_cancels_itself_has_one_end(
    configure, queue_name, burst, request, hears
) -> None:
    found = request.getfixturevalue(hears)
    samples.cancel_itself.using(queue_name=queue_name).enqueue()
    burst()

    (end,) = found.named("finished")
    assert (end[1], end[3]) == (FAILED, [JobCancelled])


def test_async_task_that_exceeds_its_time_limit_has_its_end(
    configure, queue_name, burst, listening
) -> None:
    samples.sleep_async.using(
        queue_name=queue_name, max_attempts=1, time_limit=0.05
    ).enqueue(60)
    burst()

    (end,) = listening.named("finished")
    assert (end[1], end[3]) == (FAILED, [TimeLimitExceeded])


def test_task_that_killed_its_worker_too_often_has_its_end(
    configure, queue_name, listening
) -> None:
    job = get_job(samples.add.using(queue_name=queue_name).enqueue(1).id)
    job.kills = 3

    job_dead.send(samples_definition(), job=job, reason="killed", exception=None)

    assert listening.named("finished") == [("finished", FAILED, 3, [JobFailed])]


def test_ends_of_delayed_tasks_are_not_told(configure, queue_name, listening) -> None:
    samples.plain.using(queue=queue_name).schedule(60, 1).cancel()

    assert listening == []


def test_nothing_listens_where_django_alone_does() -> None:
    before = list(job_dead.receivers)

    ends.listen()

    assert job_dead.receivers == before
    assert not running.finishing.is_heard


class TestInFrozenQueue:
    """A test is caller and worker in one, and a receiver may come at any time."""

    @pytest.fixture
    def frozen(self, configure) -> Iterator[FrozenQueue]:
        was_heard = heard.attempts
        with frozen_queue() as q:
            yield q
        assert not running.finishing.is_heard
        assert heard.attempts is was_heard

    def test_success_and_failure_have_one_end(self, frozen, queue_name, told) -> None:
        samples.add.using(queue_name=queue_name).enqueue(1)
        frozen.run_due()
        samples.fail_async.using(queue_name=queue_name, max_attempts=1).enqueue("x")
        frozen.run_due()

        assert told.named("finished") == [
            ("finished", SUCCESSFUL, 1, []),
            ("finished", FAILED, 1, [LookupError]),
        ]

    def test_expired_task_has_its_end(self, frozen, queue_name, told) -> None:
        samples.add.using(queue_name=queue_name, expires=5).enqueue(1)
        pause(queue_name)
        frozen.advance(6)
        resume(queue_name)
        frozen.run_due()

        assert told.named("finished") == [("finished", FAILED, 0, [JobExpired])]

    def test_cancelled_task_has_its_end(self, frozen, queue_name, told) -> None:
        result = samples.add.using(queue_name=queue_name).enqueue(1)
        get_job(result.id).cancel()
        samples.cancel_itself.using(queue_name=queue_name).enqueue()
        frozen.run_due()

        ends = told.named("finished")
        assert [end[1] for end in ends] == [FAILED, FAILED]
        assert [end[3] for end in ends] == [[JobCancelled], [JobCancelled]]

    def test_task_that_a_script_has_ended_has_its_end(
        self, frozen, queue_name, told
    ) -> None:
        result = samples.add.using(queue_name=queue_name).enqueue(1)
        job = get_job(result.id)
        end = EndedHere(job.token, State.QUARANTINED, job.task, "nobody can read it")

        job_signals.send_ends(queue_name, [end])

        assert told.named("finished") == [("finished", FAILED, 0, [JobFailed])]
        job.cancel()

    def test_worker_of_a_test_tells_of_ends_as_well(
        self, configure, queue_name, told, embedded_server
    ) -> None:
        with serving_run():
            result = samples.add.using(queue_name=queue_name, expires=0.001).enqueue(1)
            job = get_job(result.id)
            wait_until(
                lambda: (timezone.now() - job.start_time).total_seconds() > 0.05,
                description="the job is too late",
            )
            with running_worker([queue_name]) as worker:
                worker.wait_until_idle()

        assert told.named("finished") == [("finished", FAILED, 0, [JobExpired])]


def samples_definition() -> Any:
    return get_task(samples.add.module_path)


@pytest.mark.parametrize("is_async", [False, True])
async def test_task_that_could_not_be_sent_is_not_told_as_enqueued(
    configure, records, told, monkeypatch, is_async
) -> None:
    def refuse(*args: Any, **named: Any) -> None:
        raise ResponseError("OOM command not allowed")

    enqueue = samples.add.aenqueue if is_async else sync_to_async(samples.add.enqueue)
    with immediate():
        monkeypatch.setattr(Recorder, "note", refuse)
        with pytest.raises(ResponseError):
            await enqueue(1)

    assert told == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_task_that_runs_within_its_call_is_told_in_order(
    configure, records, told, is_async
) -> None:
    with immediate(raises=False):
        for task in (samples.add, samples.fail.using(max_attempts=1)):
            arguments = (1,) if task is samples.add else ("x",)
            if is_async:
                result = await task.aenqueue(*arguments)
            else:
                result = await sync_to_async(task.enqueue)(*arguments)
            assert result.is_finished

    assert [each[0] for each in told] == ["enqueued", "started", "finished"] * 2
