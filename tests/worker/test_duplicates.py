"""Calls that meet the job of their unique key, with a worker that runs it."""

import pytest

from django_delayq import Snooze, delayed_task, get_job, schedule
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks


def of_one_key(task, queue, **options):
    return task.using(queue=queue, unique=lambda *args, **kwargs: "k", **options)


@every_server
@pytest.mark.parametrize("task", [tasks.hold, tasks.hold_async], ids=["sync", "async"])
def test_job_behind_another_begins_once_that_has_ended(
    work, records, client, queue_name, task
):
    work()
    keys = get_settings().queue(queue_name).keys
    task = of_one_key(task, queue_name, on_duplicate="replace")
    first = schedule(task, 0)
    wait_until(lambda: records.count("start") == 1, description="the first runs")

    second = schedule(task, 0)
    third = schedule(task, 0)

    assert (second.created, third.created, third.replaced) == (True, False, True)
    assert third.id == second.id != first.id
    wait_until(
        lambda: client.zcard(keys.returned) == 1,
        description="a worker has looked at it and put it back",
    )
    assert records.count("start") == 1
    records.let_go()
    wait_until(lambda: records.count("end") == 2, description="both have run")
    steps = [(line["step"], line["job"]) for line in records.all()]
    assert steps == [
        ("start", first.id),
        ("end", first.id),
        ("start", second.id),
        ("end", second.id),
    ]
    wait_until(
        lambda: get_job(second.id).state is State.SUCCEEDED,
        description="the worker has told",
    )
    assert not client.exists(keys.unique)


@every_server
def test_debounced_calls_run_once_with_the_last_arguments(
    work, records, client, queue_name
):
    work()
    task = of_one_key(
        tasks.note,
        queue_name,
        on_duplicate=("replace", "postpone"),
        unique_until="start",
        max_wait=60,
    )

    # While the first of them may already run, each makes a new job.
    jobs = [schedule(task, 0.3, n) for n in range(20)]
    last = jobs[-1]

    wait_until(
        lambda: any(line["job"] == last.id for line in records.all("run")),
        description="the last has run",
    )
    ran = [line["text"] for line in records.all("run")]
    assert ran == sorted(set(ran))
    assert ran[-1] == 19
    assert len(ran) == sum(job.created for job in jobs)


@every_server
def test_replacement_expires_by_its_own_start_time(work, records, client, queue_name):
    task = of_one_key(tasks.note, queue_name, on_duplicate="replace")
    first = schedule(task.using(expires=3600), 0, "old")
    # Its start time stays. By that, it would be too late at once.
    job = schedule(task.using(expires=0.001), 3600, "new")
    assert (job.id, job.replaced) == (first.id, True)

    work()

    wait_until(lambda: records.all("run"), description="it has run")
    assert [line["text"] for line in records.all("run")] == ["new"]


@every_server
def test_job_that_is_too_late_and_the_one_that_took_its_key(
    work, records, client, queue_name
):
    task = of_one_key(tasks.note, queue_name)
    first = schedule(task.using(expires=0.001), 0, "old")
    second = wait_until(
        lambda: next((job for job in [schedule(task, 0, "new")] if job.created), None),
        description="the first is too late",
    )

    work()

    wait_until(lambda: records.all("run"), description="the second has run")
    wait_until(
        lambda: (first.refresh(), second.refresh()) == (State.EXPIRED, State.SUCCEEDED),
        description="both have ended",
    )
    assert [line["text"] for line in records.all("run")] == ["new"]
    assert not client.exists(get_settings().queue(queue_name).keys.unique)


@delayed_task
def sleep_first(key: str) -> None:
    raise Snooze(600)


@every_server
@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_call_without_expires_makes_a_job_beside_a_holder_that_will_be_too_late(
    work, client, queue_name, mode
):
    """It snoozes for longer than it may wait, so it will not run again."""
    task = of_one_key(sleep_first, queue_name)
    first = schedule(task.using(expires=60), 0, "k")
    work()
    keys = get_settings().queue(queue_name).keys
    wait_until(lambda: client.zcard(keys.returned) == 1, description="it snoozes")

    second = schedule(task.using(on_duplicate=mode), 600, "k")

    assert second.created
    assert second.id != first.id


@every_server
def test_follower_is_stored_beside_a_holder_that_will_be_too_late(
    work, client, queue_name
):
    task = of_one_key(sleep_first, queue_name)
    schedule(task.using(expires=60), 0, "k")
    work()
    keys = get_settings().queue(queue_name).keys
    wait_until(lambda: client.zcard(keys.returned) == 1, description="it snoozes")

    follower = task.prepare(600, "k")
    schedule(tasks.note.using(queue=queue_name).prepare(0, "a").then(follower))

    wait_until(
        lambda: follower.refresh() is State.SCHEDULED, description="it is stored"
    )
