"""What a worker does around a job happens in tests as well: signals, contexts, middleware, and rows of the outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase
from django.utils import translation

from django_delayq import (
    Batch,
    JobCancelled,
    State,
    aschedule_many,
    conf,
    current_job,
    delayed_task,
    schedule_many,
    signals,
)
from django_delayq.jobs import outbox
from django_delayq.outbox import row_writer
from django_delayq.outbox.part import OutboxPart
from django_delayq.testing import captured, frozen_queue, immediate
from tests.testing.samples import RAN, adouble, deciding, double, failing, once

HERE = __name__
ALL = {
    "started": signals.job_started,
    "succeeded": signals.job_succeeded,
    "retried": signals.job_retried,
    "cancelled": signals.job_cancelled,
    "quarantined": signals.job_quarantined,
    "scheduled": signals.job_scheduled,
}
#: What happened around jobs, in order.
seen: list[Any] = []


@delayed_task
def speaking() -> None:
    RAN.append(("language", translation.get_language()))


@delayed_task
async def aspeaking() -> None:
    RAN.append(("language", translation.get_language()))


def doubled(call: Any) -> Any:
    def middleware(job: Any) -> Any:
        handle = current_job()
        assert handle is job
        seen.append(("before", job.task))
        try:
            return 10 * call(job)
        finally:
            seen.append(("after", job.task))

    return middleware


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any]]]:
    """What the signals said: which, and the task."""
    told: list[tuple[str, Any]] = []
    receivers = []
    before = signals.heard.attempts
    for name, signal in ALL.items():

        def receive(job: Any, name: str = name, **named: Any) -> None:
            told.append((name, (job.task or "").rpartition(".")[2]))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield told
    for signal, receive in receivers:
        signal.disconnect(receive)
    signals.heard.attempts = before


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@contextmanager
def run_by(kind: str) -> Iterator[None]:
    """Run what the block schedules, at once or at its end."""
    if kind == "immediate":
        with immediate(raises=False):
            yield
    else:
        with frozen_queue() as q:
            yield
            q.run_due()


KINDS = pytest.mark.parametrize("kind", ["immediate", "frozen"])


@KINDS
@pytest.mark.parametrize("task", [double, adouble])
def test_attempt_is_told_of(kind: str, task: Any, heard: Any) -> None:
    with run_by(kind):
        task.schedule(0, 1)

    name = task.name.rpartition(".")[2]
    assert len(heard) == 3
    assert heard.index(("started", name)) < heard.index(("succeeded", name))


@KINDS
def test_failure_and_cancel_are_told_of(kind: str, heard: Any) -> None:
    with run_by(kind):
        failing.schedule(0, 1)
        deciding.schedule(0, "cancel")

    assert ("retried", "failing") in heard
    assert ("cancelled", "deciding") in heard


@KINDS
def test_what_follows_is_told_of_as_scheduled(kind: str, heard: Any) -> None:
    with run_by(kind):
        schedule_many([double.prepare(0, 1).then(once.prepare(0, 2))])

    assert heard.count(("scheduled", "once")) == 1
    assert heard.index(("succeeded", "double")) < heard.index(("scheduled", "once"))


async def test_what_follows_is_told_of_on_the_event_loop(heard: Any) -> None:
    with immediate():
        await aschedule_many([double.prepare(0, 1).then(once.prepare(0, 2))])

    assert heard.count(("scheduled", "once")) == 1


@KINDS
def test_callback_of_a_batch_is_told_of(kind: str, heard: Any) -> None:
    with run_by(kind):
        Batch(once.using(unique=False).prepare(0, 3)).schedule([double.prepare(0, 4)])

    assert heard.count(("scheduled", "once")) == 1
    assert ("succeeded", "once") in heard


async def test_attempt_of_an_event_loop_is_told_of(heard: Any) -> None:
    with immediate():
        await adouble.aschedule(0, 1)
        await double.aschedule(0, 1)

    for name in ("adouble", "double"):
        assert ("started", name) in heard
        assert ("succeeded", name) in heard


def test_frame_that_nobody_can_read_is_told_of(heard: Any) -> None:
    with frozen_queue() as q:
        keys = conf.get_settings().queue("default").keys
        q.server.execute(("ZADD", keys.queue.timeout_set, 0, b"no frame"))
        q.run_due()
        # Before the test goes on, and in its thread.
        assert heard == [("quarantined", "")]


@KINDS
@pytest.mark.parametrize("task", [speaking, aspeaking])
def test_context_travels(kind: str, task: Any, settings: Any) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "CONTEXT": ["django_delayq.context.Locale"],
    }
    with run_by(kind), translation.override("de"):
        job = task.prepare(0)
        with translation.override("en"):
            schedule_many([job])

    assert RAN == [("language", "de")]


@KINDS
@pytest.mark.parametrize("task", [double, double.using(time_limit=60)])
def test_middleware_is_around_the_call(kind: str, task: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MIDDLEWARE": [f"{HERE}.doubled"]}
    with run_by(kind):
        job = task.schedule(0, 1)
        if kind == "immediate":
            assert job.wait(timeout=1) == 20

    assert seen == [("before", double.name), ("after", double.name)]
    assert RAN == [("double", 1)]


def test_cancelled_job_says_so_to_those_who_wait() -> None:
    with captured():
        job = double.schedule(60, 1)
        assert job.cancel()
        with pytest.raises(JobCancelled, match="cancelled before it ran"):
            job.wait(timeout=1)


class OutboxTest(TestCase):
    """A row is sent with its commit."""

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "_installed", OutboxPart())
        monkeypatch.setattr(row_writer, "_quiet_until_ms", {})

    def test_row_is_captured_at_the_commit(self) -> None:
        with captured() as jobs:
            with transaction.atomic():
                job = double.using(outbox=True).schedule(900, 1)
                jobs.assert_not_scheduled()
            jobs.assert_scheduled(double, args=(1,), due_in=900)
            assert job.refresh() is State.SCHEDULED

    def test_row_with_a_key_that_is_held_is_the_other_job(self) -> None:
        with captured() as jobs:
            first = once.schedule(900, 1)
            with transaction.atomic():
                job = once.using(outbox=True).schedule(900, 1)
            assert (job.id, job.created, len(jobs)) == (first.id, False, 1)

    def test_row_runs_at_the_commit(self) -> None:
        with immediate(), transaction.atomic():
            double.using(outbox=True).schedule(900, 1)
            assert RAN == []
        assert RAN == [("double", 1)]

    def test_row_runs_when_it_is_due(self) -> None:
        with frozen_queue() as q:
            with transaction.atomic():
                job = double.using(outbox=True).schedule(900, 1)
            assert q.advance(899) == []
            assert len(q.advance(1)) == 1
            assert job.refresh() is State.SUCCEEDED

    def test_row_whose_task_raises_raises_it_at_the_commit(self) -> None:
        with immediate(), pytest.raises(ValueError, match="no 1"):
            with transaction.atomic():
                failing.using(outbox=True).schedule(900, 1)
        with captured() as jobs:
            double.using(outbox=True).schedule(900, 2)
            jobs.assert_scheduled(double, args=(2,))


@delayed_task
def activating() -> None:
    translation.activate("fr")


@delayed_task
async def aactivating() -> None:
    translation.activate("fr")


@pytest.mark.parametrize("task", [activating, aactivating])
@pytest.mark.parametrize("mode", [immediate, frozen_queue])
def test_what_a_task_activates_does_not_reach_the_test(task: Any, mode: Any) -> None:
    before = translation.get_language()

    with mode() as q:
        task.schedule(0)
        if mode is frozen_queue:
            q.run_due()
            assert translation.get_language() == before

    assert translation.get_language() == before
