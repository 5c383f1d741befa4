"""A job from its claim to its end, in workers inside this process."""

import asyncio

import pytest

from django_delayq import Job, current_job, get_job, schedule, schedule_many
from django_delayq.core.states import State
from django_delayq.exceptions import JobFailed, JobNotFound
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import counts


def wait_for(job: Job, state: State, timeout: float = 60) -> Job:
    wait_until(
        lambda: job.refresh() is state,
        description=f"{job!r} is {state}",
        timeout=timeout,
    )
    return job


@every_server
def test_sync_and_async_tasks_run_once_with_their_arguments(work, records, queue_name):
    jobs = [schedule(tasks.note.using(queue=queue_name), 0, text=i) for i in range(20)]
    jobs += [
        schedule(tasks.note_async.using(queue=queue_name), 0, i) for i in range(20, 40)
    ]

    work()

    wait_until(lambda: records.count("run") >= 40, description="all have run")
    wait_until(lambda: counts(queue_name).running == 0, description="all are settled")
    assert sorted(line["text"] for line in records.all("run")) == list(range(40))
    assert sorted(records.jobs("run")) == sorted(job.id for job in jobs)
    assert counts(queue_name).counters["succeeded"] == 40
    with pytest.raises(JobNotFound):
        get_job(f"{queue_name}:nothing-like-that-there")


def test_coroutines_run_beside_each_other(work, records, queue_name):
    schedule_many(
        tasks.hold_async.using(queue=queue_name).prepare(0) for _ in range(30)
    )

    work(threads=1)

    wait_until(lambda: records.count("start") == 30, description="all run")
    assert records.count("end") == 0
    records.let_go()
    wait_until(lambda: records.count("end") == 30, description="all have ended")


def test_current_job_is_known_while_it_runs_and_nowhere_else(work, records, queue_name):
    assert current_job() is None
    job = schedule(tasks.note.using(queue=queue_name), 0)
    other = schedule(tasks.note_async.using(queue=queue_name), 0)

    work()

    wait_until(lambda: records.count("run") == 2, description="both have run")
    assert set(records.jobs("run")) == {job.id, other.id}
    assert [line["attempt"] for line in records.all("run")] == [1, 1]
    assert current_job() is None


@every_server
def test_failed_attempts_are_repeated_until_one_succeeds(work, records, queue_name):
    job = schedule(tasks.fail_until.using(queue=queue_name, keep_result=60), 0, 3)

    work()

    assert job.wait(60) == "attempt 3"
    assert records.jobs("run") == [job.id] * 3
    assert [line["attempt"] for line in records.all("run")] == [1, 2, 3]
    assert counts(queue_name).counters["retried"] == 2


def test_waits_between_attempts_grow_as_the_backoff_says(
    work, records, queue_name, caplog
):
    backoff = tasks.Backoff(base=0.1, factor=3, jitter=0)
    job = schedule(tasks.fail_until.using(queue=queue_name, backoff=backoff), 0, 3)

    work()

    wait_until(lambda: records.count("run") == 3, description="the third attempt")
    first, second, third = (line["at_ms"] for line in records.all("run"))
    assert second - first >= 100
    assert third - second >= 300
    waits = [
        fields["retry_in_ms"]
        for record in caplog.records
        if "retry_in_ms" in (fields := getattr(record, "delayq", {}))
    ]
    assert waits == [100, 300]
    wait_for(job, State.SUCCEEDED)


@pytest.mark.parametrize("task", [tasks.fail, tasks.fail_async])
def test_out_of_attempts_is_a_dead_letter_with_the_error_of_the_task(
    work, records, queue_name, task
):
    job = schedule(task.using(queue=queue_name, max_attempts=2), 0)

    work()
    wait_for(job, State.DEAD)

    assert records.count("run") == 2
    assert job.attempts == 2
    assert job.error["error"] == "Wrong: as told"
    assert job.error["kind"] == "failed"
    # The frames of the worker itself are nobody's business.
    assert job.error["traceback"].splitlines()[1].endswith(f"in {task.__name__}")
    assert "django_delayq" not in job.error["traceback"]


def test_only_exceptions_of_retry_on_and_not_of_no_retry_on_are_repeated(
    work, records, queue_name
):
    from django_delayq import delayed_task

    def raising(error):
        def function():
            raise error

        return function

    cases = {
        "other": (
            delayed_task(name="retry-other", retry_on=ValueError)(raising(KeyError())),
            1,
        ),
        "listed": (
            delayed_task(name="retry-listed", retry_on=(OSError, ValueError))(
                raising(ValueError())
            ),
            3,
        ),
        "excepted": (
            delayed_task(name="retry-not", retry_on=LookupError, no_retry_on=KeyError)(
                raising(KeyError())
            ),
            1,
        ),
    }
    jobs = {
        name: schedule(
            task.using(queue=queue_name, max_attempts=3, backoff=tasks.AT_ONCE), 0
        )
        for name, (task, _) in cases.items()
    }

    work()

    for name, (_, attempts) in cases.items():
        wait_for(jobs[name], State.DEAD)
        assert jobs[name].attempts == attempts, name


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("unprintable", "Unprintable: (its text cannot be made)"),
        ("surrogate", "Wrong: half a pair: ?"),
        ("huge", "Wrong: xxxx"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_nothing_that_a_task_raises_harms_the_worker(
    work, records, queue_name, kind, message
):
    work(threads=1)
    job = schedule(tasks.raise_strangely.using(queue=queue_name), 0, kind)

    with pytest.raises(JobFailed, match="dead"):
        job.wait(60)
    wait_for(job, State.DEAD)

    assert job.error["error"].startswith(message)
    assert len(job.error["error"]) <= 2000
    # The only thread is still there.
    assert schedule(tasks.add.using(queue=queue_name), 0, 1, 2).wait(60) == 3


def test_results_are_kept_for_who_waits(work, queue_name):
    job = schedule(tasks.add.using(queue=queue_name), 0, 20, 22)
    other = schedule(tasks.add_async.using(queue=queue_name), 0, 1, 1)
    failing = schedule(
        tasks.fail.using(queue=queue_name, max_attempts=1, keep_result=60), 0
    )

    work()

    assert job.wait(60) == 42
    assert asyncio.run(other.await_result(60)) == 2
    with pytest.raises(JobFailed, match="Wrong: as told"):
        failing.wait(60)


@pytest.mark.parametrize("kind", ["object", "surrogate", "huge"])
def test_a_job_whose_result_cannot_be_kept_has_succeeded_once_all_the_same(
    work, records, queue_name, kind
):
    job = schedule(tasks.return_strangely.using(queue=queue_name), 0, kind)

    work()

    with pytest.raises(JobFailed, match="succeeded"):
        job.wait(60)
    wait_for(job, State.SUCCEEDED)
    assert records.count("run") == 1


def test_a_job_that_is_too_late_is_dropped_or_buried_without_being_run(
    work, records, queue_name, client
):
    dropped = schedule(tasks.note.using(queue=queue_name, expires=0.05), 0)
    buried = schedule(
        tasks.note.using(
            queue=queue_name, expires=0.05, on_expiry="dead", keep_result=60
        ),
        0,
    )
    in_time = schedule(tasks.note.using(queue=queue_name, expires=60), 0)

    def server_ms():
        seconds, micros = client.time()
        return seconds * 1000 + micros // 1000

    wait_until(
        lambda: server_ms() > buried.start_time_ms + 50, description="it is late"
    )
    work()

    wait_for(dropped, State.EXPIRED)
    wait_for(buried, State.DEAD)
    wait_until(lambda: records.count("run") == 1, description="the third has run")
    assert records.jobs("run") == [in_time.id]
    assert buried.attempts == 0
    assert buried.error["kind"] == "expired"
    with pytest.raises(JobFailed, match="too late to matter"):
        buried.wait(60)


def test_a_unique_key_is_held_through_retries_and_released_at_the_end(
    work, records, queue_name
):
    backoff = tasks.Backoff(base=60, factor=1, jitter=0)
    unique = tasks.fail_until.using(queue=queue_name, unique=True, backoff=backoff)
    first = schedule(unique, 0, 2)
    work()
    wait_for(first, State.RETRYING)

    second = schedule(unique, 0, 2)
    assert first.run_now()
    wait_for(first, State.SUCCEEDED)
    third = schedule(unique, 0, 2)

    assert second == first
    assert not second.created
    assert third != first
    assert third.created
    assert records.jobs("run")[:2] == [first.id] * 2
