"""Database connections are handled as a request handles them, and no job inherits another's trouble."""

from pathlib import Path

import pytest

from django_delayq import schedule
from django_delayq.core.states import State
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts


@pytest.fixture
def run_all(program, queue_name, records, tmp_path):
    """Run tasks one after the other in one thread; return their records."""

    def run_all(*calls, **environment):
        told = {"WORKER_TEST_DATABASE": str(Path(tmp_path, "db")), **environment}
        worker = program("--queue", queue_name, "--threads", "1", environment=told)
        for task, *args in calls:
            job = schedule(task.using(queue=queue_name), 0, *args)
            wait_until(
                lambda job=job: job.refresh() in (State.SUCCEEDED, State.DEAD),
                description=f"{job} has ended",
            )
        # What they have scheduled may have been given back before it began.
        wait_until(
            lambda: (told := counts(queue_name)).waiting + told.running == 0,
            description="nothing is left to run",
        )
        assert worker.stop() == 0, worker.log
        return records.all("run")

    return run_all


def test_connections_are_closed_after_each_job(run_all):
    lines = run_all((tasks.use_database,), (tasks.use_database,))

    assert len({line["connection"] for line in lines}) == 2


def test_persistent_connections_are_kept_until_they_are_too_old(run_all):
    lines = run_all(
        (tasks.use_database,),
        (tasks.use_database,),
        (tasks.age_connection,),
        (tasks.use_database,),
        WORKER_TEST_CONN_MAX_AGE="600",
        # Queries are logged then.
        WORKER_TEST_DEBUG="1",
    )

    first, second, _, fourth = lines
    assert first["connection"] == second["connection"] != fourth["connection"]
    assert [line["queries"] for line in (first, second, fourth)] == [1, 1, 1]


def test_a_transaction_does_not_outlive_the_job_that_began_it(run_all):
    lines = run_all(
        (tasks.leave_transaction_open,),
        (tasks.use_database,),
        (tasks.spin_in_transaction,),
        (tasks.use_database,),
        WORKER_TEST_CONN_MAX_AGE="600",
    )

    assert [line["is_in_transaction"] for line in lines[1:]] == [False, False]


def test_an_async_job_has_one_thread_for_its_database_and_closes_its_connections(
    run_all,
):
    lines = run_all(
        (tasks.use_database_async,),
        (tasks.use_database_async,),
        WORKER_TEST_CONN_MAX_AGE="600",
    )

    first, second, third, fourth = lines
    assert first["thread"] == second["thread"]
    assert first["connection"] == second["connection"]
    assert third["connection"] == fourth["connection"] != first["connection"]


def test_a_job_scheduled_on_commit_by_a_job_runs_after_the_commit_only(
    run_all, records
):
    lines = run_all(
        (tasks.schedule_on_commit, True),
        (tasks.schedule_on_commit, False),
        (tasks.note, "last"),
    )

    assert sorted(line["text"] for line in lines) == ["committed", "last"]
    steps = [line["step"] for line in records.all()]
    assert steps.index("rolled back") < steps.index("run")
