"""A deploy may start its workers in any order: what the old ones do not know waits for the new ones."""

import pytest

from django_delayq import schedule_many
from django_delayq.core.states import State
from tests.faults.deploy.tasks import brand_new
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts

NEW = {"WORKER_TEST_APPS": "tests.faults.deploy"}


@pytest.fixture
def start_worker(program, queue_name):
    """Start a worker program as it was before the deploy, or as it is after it."""

    def start(*, is_new):
        worker = program("--queue", queue_name, environment=NEW if is_new else {})
        return worker.wait_for_processes()

    return start


def test_a_job_that_an_old_worker_holds_runs_when_a_new_one_starts(
    lasting, ledger, start_worker, queue_name
):
    old = start_worker(is_new=False)
    job = ledger.schedule(brand_new.using(queue=queue_name), 0, 7)
    wait_until(lambda: job.refresh() is State.HELD, description="it is held")
    # The old one looks after the queue as before.
    known = ledger.schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ledger.runs(known.id), description="another job has run")
    assert ledger.runs(job.id) == []

    start_worker(is_new=True)

    assert job.wait(timeout=120) == 7
    assert len(ledger.runs(job.id)) == 1
    told = counts(queue_name)
    assert (told.held, told.quarantined) == (0, 0)
    assert told.counters.get("quarantined", 0) == 0
    assert f"job={job.id} task={brand_new.name} outcome=held" in old.log


def test_a_job_that_no_worker_comes_for_goes_to_quarantine_with_the_reason(
    lasting, use, ledger, start_worker, queue_name
):
    use(lasting, HOLD_UNKNOWN=1)
    old = start_worker(is_new=False)

    job = ledger.schedule(brand_new.using(queue=queue_name), 0, 7)

    wait_until(
        lambda: job.refresh() is State.QUARANTINED,
        description="it is in quarantine",
        timeout=120,
    )
    assert job.error["kind"] == "task"
    assert repr(brand_new.name) in job.error["error"]
    assert (
        "It was held, and no worker that can run it came in time" in job.error["error"]
    )
    assert counts(queue_name).held == 0
    old.wait_for_log("so these jobs were quarantined")
    # And a person may still retry it.
    start_worker(is_new=True)
    old.stop()
    assert job.retry()
    assert job.wait(timeout=120) == 7


def test_a_rolling_deploy_under_load_loses_and_quarantines_nothing(
    lasting, ledger, start_worker, queue_name
):
    olds = [start_worker(is_new=False) for _ in range(2)]
    new_task, old_task = (
        task.using(queue=queue_name) for task in (brand_new, tasks.note)
    )
    jobs = schedule_many(
        [
            (new_task if number % 2 else old_task).prepare(number / 250, number)
            for number in range(1_000)
        ]
    )
    wait_until(
        lambda: counts(queue_name).held > 20, description="the old ones hold some"
    )

    for old in olds:
        start_worker(is_new=True)
        assert old.stop() == 0

    wait_until(
        lambda: len(set(ledger.records.jobs("run"))) == len(jobs),
        description="every job has run",
        timeout=120,
    )
    assert sorted(ledger.records.jobs("run")) == sorted(job.id for job in jobs)
    wait_until(lambda: counts(queue_name).running == 0, description="all is settled")
    told = counts(queue_name)
    assert (told.held, told.quarantined, told.dead, told.waiting) == (0, 0, 0, 0)
    assert told.counters.get("quarantined", 0) == 0
