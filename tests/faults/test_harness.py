"""The harness itself: a scenario that says nothing went wrong must be able to see what would be wrong."""

import time

from django_delayq.core.states import State
from tests.faults.ledger import Run
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.records import ENVIRONMENT, record


def test_ledger_tells_what_worker_programs_ran_and_by_whom(
    lasting, programs, ledger, queue_name
):
    started = programs(2)
    jobs = [ledger.schedule(tasks.hold.using(queue=queue_name), 0) for _ in range(2)]
    ledger.wait_for_starts(2)
    assert [run.ended_ms for run in ledger.runs()] == [None, None]

    ledger.records.let_go()

    runs = ledger.wait_for_ends(2)
    assert (
        {run.job for run in runs} == {job.id for job in jobs} == set(ledger.scheduled)
    )
    children = {pid for each in started for pid in each.children()}
    assert set(ledger.pids().values()) <= children
    assert ledger.repeated() == {}


def test_ledger_sees_a_job_that_runs_twice(tmp_path, monkeypatch, ledger):
    monkeypatch.setenv(ENVIRONMENT, str(ledger.records.path))
    ledger.records.queues = ""
    for step in ("start", "start", "end"):
        record(step)

    (runs,) = ledger.repeated().values()

    assert [type(run) for run in runs] == [Run, Run]
    assert [run.ended_ms is None for run in runs] == [True, False]


def test_server_clock_steps_while_the_server_runs(stepped, server_clock):
    with stepped.client() as client:

        def offset_s():
            seconds, micros = client.time()
            return seconds + micros / 1e6 - time.time()

        assert abs(offset_s()) < 1_000
        server_clock.step(stepped, 7_200)
        assert offset_s() > 6_000
        server_clock.step(stepped, -10_800)
        assert offset_s() < -2_000


def test_suspended_server_answers_when_it_is_resumed(lasting, ledger, queue_name):
    job = ledger.schedule(tasks.nothing.using(queue=queue_name), 3600)
    lasting.suspend()
    with lasting.client(socket_timeout=0.1, retry=None) as client:
        told = ledger.attempt(job.id, "ping", client.ping)
    lasting.resume()

    assert isinstance(told, Exception)
    wait_until(lambda: job.refresh() is State.SCHEDULED, description="it answers")
    assert [line["what"] for line in ledger.told()] == ["ping"]
