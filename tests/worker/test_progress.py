"""How far jobs are, as their tasks say and pages show."""

import asyncio
import time
from itertools import pairwise

import pytest

from django_delayq import InvalidTask, current_job, delayed_task, get_job, schedule
from django_delayq.conf import get_settings
from django_delayq.jobs.attempt_handle import Here
from django_delayq.jobs.progress_report import Progress, running_report, stored_progress
from django_delayq.jobs.stop import NEVER
from django_delayq.testing import captured, frozen_queue, immediate
from django_delayq.worker import reports
from tests.polling import wait_until
from tests.worker.conftest import every_server

#: What tasks wait for, by the text that a test gives them.
gates: dict[str, bool] = {}


def is_open(gate) -> bool:
    return gates.get(gate, False)


@delayed_task
def step(gate: str) -> None:
    current_job().progress(1, 4, "first")
    wait_until(lambda: is_open(gate), description="the gate opens")


@delayed_task
async def step_async(gate: str) -> None:
    current_job().progress(2)
    while not is_open(gate):
        await asyncio.sleep(0.01)


@delayed_task
def say_often(gate: str) -> None:
    job = current_job()
    number = 0
    while not is_open(gate):
        number += 1
        job.progress(number, 10**9)
        time.sleep(0.001)


@pytest.fixture
def gate(queue_name):
    yield queue_name
    gates[queue_name] = True


def said(job) -> Progress:
    return wait_until(job.read_progress, description="progress is written")


def keys_of(queue):
    return get_settings().queue(queue).keys


@every_server
def test_progress_of_a_running_job_is_read_and_goes_with_it(
    work, queue_name, gate, client
) -> None:
    work()
    job = schedule(step.using(queue=queue_name), 0, gate)

    found = said(get_job(job.id))

    assert (found.done, found.total, found.text, found.share) == (1, 4, "first", 0.25)
    gates[gate] = True
    wait_until(
        lambda: not client.exists(keys_of(queue_name).progress),
        description="nothing is left",
    )
    assert job.read_progress() is None


def test_coroutines_say_how_far_they_are(work, queue_name, gate) -> None:
    work()
    job = schedule(step_async.using(queue=queue_name), 0, gate)

    found = said(job)

    assert (found.done, found.total, found.text, found.share) == (2, None, "", None)
    assert asyncio.run(job.aread_progress()) == found


def test_process_writes_twice_a_second_however_often_tasks_say_it(
    work, queue_name, gate, monkeypatch
) -> None:
    calls = []
    note = reports.note_progress

    def counting(keys, jobs):
        # When it began to write: it may be suspended before it comes here.
        calls.append((worker.loop.progress._told_ms, len(jobs)))
        return note(keys, jobs)

    monkeypatch.setattr(reports, "note_progress", counting)
    worker = work(threads=4)
    jobs = [schedule(say_often.using(queue=queue_name), 0, gate) for _ in range(3)]
    first = [said(job).done for job in jobs]
    wait_until(
        lambda: all(
            job.read_progress().done > done
            for job, done in zip(jobs, first, strict=True)
        ),
        description="all have gone on",
    )
    wait_until(
        lambda: len(calls) >= 4 and (3 in {count for _, count in calls}),
        description="four writes, one of them for all three jobs",
    )

    times = [at_ms for at_ms, _ in calls]
    assert all(b - a > 450 for a, b in pairwise(times))


def test_nothing_is_written_once_the_lease_is_lost(work, queue_name, gate) -> None:
    worker = work()
    job = schedule(say_often.using(queue=queue_name), 0, gate)
    said(job)
    (attempt,) = worker.loop.dispatch.snapshot()
    attempt.is_lost = True
    # What was on its way is written by then.
    settled = time.monotonic() + 1.2
    wait_until(lambda: time.monotonic() > settled, description="two writes have passed")
    before = job.read_progress()
    again = time.monotonic() + 1.2
    wait_until(lambda: time.monotonic() > again, description="two more have passed")

    assert job.read_progress() == before


@pytest.mark.parametrize(
    "arguments",
    [
        (-1,),
        ("5",),
        (True,),
        (None,),
        (float("nan"),),
        (float("inf"),),
        (1, -1),
        (1, "9"),
    ],
)
def test_number_that_is_none_is_refused(arguments) -> None:
    with pytest.raises(InvalidTask, match=r"^progress\((done|total)=.*give a number"):
        stored_progress(*arguments, *[None] * (2 - len(arguments)), "")


def test_text_is_cut_and_made_plain() -> None:
    stored = stored_progress(1, None, "x" * 500 + "\ud800")

    assert len(stored) < 250
    assert stored_progress(1, 0, "\ud800").endswith(b'"total":0.0,"text":"?"}')


def test_job_that_does_not_run_here_makes_no_progress(configure, queue_name) -> None:
    job = schedule(step.using(queue=queue_name), 600, "gate")

    with pytest.raises(InvalidTask, match=r"call current_job\(\)\.progress\(\)"):
        job.progress(1)
    assert job.read_progress() is None


@delayed_task
def say_once() -> None:
    current_job().progress(1, 2, "half")


def test_in_tests_progress_is_checked_and_written_nowhere(settings) -> None:
    with immediate():
        schedule(say_once, 0)
    with captured() as jobs:
        job = schedule(say_once, 0)
        assert job.read_progress() is None
        assert len(jobs) == 1
    with frozen_queue() as queue:
        job = schedule(say_once, 0)
        queue.run_due()
        assert job.read_progress() is None


def test_elsewhere_nobody_listens() -> None:
    assert running_report.get()(None, b"") is None
    assert Here(lambda: True, NEVER).report(b"") is None
