"""Outages and clocks: nothing that a living process holds runs elsewhere, and nothing that ended runs again."""

import signal
import time

import pytest

from django_delayq import conf
from django_delayq.core.states import State
from django_delayq.transport.clients import own_clients
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts, kill

#: Seconds; room enough for a slow machine to renew in a third of it.
LEASE = 6
#: As long as a worker that is never told anything waits for its server.
RETURN_S = LEASE * 5 / 12
#: Of this many processes each has a job, and one of them two.
JOBS = 4


@pytest.fixture
def busy(use, programs, ledger, queue_name):
    """Start three healthy processes that run four long jobs, against a server."""

    def start(server):
        use(server, LEASE=LEASE, THREADS=2)
        started = programs(3)
        jobs = [
            ledger.schedule(tasks.hold.using(queue=queue_name), 0) for _ in range(JOBS)
        ]
        ledger.wait_for_starts(JOBS)
        return started, jobs

    return start


def settled(queue_name, jobs):
    """Wait until every job has succeeded, and the server knows it."""
    wait_until(
        lambda: (
            [job.refresh() for job in jobs] == [State.SUCCEEDED] * len(jobs)
            or counts(queue_name).counters.get("succeeded") == len(jobs)
        ),
        description="all have succeeded",
        timeout=60,
    )


def outage(server, kind):
    """Take the server away for longer than a lease."""
    if kind == "suspended":
        server.suspend()
    else:
        server.kill()
    time.sleep(1.5 * LEASE)
    if kind == "suspended":
        server.resume()
    else:
        server.start()


def wait_for_service(queue_name):
    """Wait until every lease was renewed and all looked for more: what was to be claimed is."""
    begun = time.monotonic()
    wait_until(
        lambda: time.monotonic() - begun > 1.5 * LEASE,
        description="a lease and a half has passed",
    )


def wait_for_renewal(queue_name, job):
    keys = conf.get_settings().queue(queue_name).keys
    token = job.id.rpartition(":")[2]
    first_end_ms = own_clients.of_thread().zscore(keys.leases, token)
    wait_until(
        lambda: own_clients.of_thread().zscore(keys.leases, token) > first_end_ms,
        description="its lease was renewed",
    )


@pytest.mark.parametrize(
    "kind", ["suspended", pytest.param("killed", marks=pytest.mark.exhaustive)]
)
def test_outage_longer_than_a_lease_doubles_nothing_that_runs(
    lasting, busy, ledger, queue_name, kind
):
    _, jobs = busy(lasting)

    outage(lasting, kind)
    wait_for_service(queue_name)

    assert counts(queue_name).running == JOBS
    assert len(ledger.runs()) == JOBS
    ledger.records.let_go()
    settled(queue_name, jobs)
    assert ledger.repeated() == {}
    assert {run.kills for run in ledger.runs()} == {0}


@pytest.mark.parametrize(
    "kind", [pytest.param("suspended", marks=pytest.mark.exhaustive), "killed"]
)
def test_what_ended_during_an_outage_is_settled_and_does_not_run_again(
    lasting, busy, ledger, queue_name, kind
):
    _, jobs = busy(lasting)
    if kind == "suspended":
        lasting.suspend()
    else:
        lasting.kill()

    ledger.records.let_go()
    ledger.wait_for_ends(JOBS)
    time.sleep(1.5 * LEASE)
    if kind == "suspended":
        lasting.resume()
    else:
        lasting.start()

    settled(queue_name, jobs)
    wait_for_service(queue_name)
    assert len(ledger.runs()) == JOBS


def test_job_of_a_worker_that_died_during_an_outage_is_back_soon_and_the_others_are_left(
    lasting, busy, ledger, queue_name
):
    started, jobs = busy(lasting)
    lasting.suspend()
    pids = ledger.pids()
    victim = next(each for each in started if set(each.children()) & set(pids.values()))
    lost = {job for job, pid in pids.items() if pid in victim.children()}
    # Its supervisor, too: nobody gives its leases back.
    children = victim.children()
    victim.signal(signal.SIGKILL)
    for pid in children:
        kill(pid, signal.SIGKILL)
    time.sleep(1.5 * LEASE)

    served_ms = time.time_ns() / 1e6
    lasting.resume()

    ledger.wait_for_starts(JOBS + len(lost), timeout=60)
    assert set(ledger.repeated()) == lost
    again = [runs[1] for runs in ledger.repeated().values()]
    # Nobody may have them before whoever lives had the time to renew.
    assert all(run.started_ms - served_ms > 1000 * LEASE / 3 for run in again)
    assert {run.kills for run in again} == {0}
    ledger.records.let_go()
    settled(queue_name, jobs)
    assert set(ledger.repeated()) == lost


def test_process_that_died_during_an_outage_is_not_waited_for(
    lasting, use, programs, ledger, queue_name
):
    """Its supervisor lives, and knows."""
    use(lasting, LEASE=600)
    programs(1)
    job = ledger.schedule(tasks.hold.using(queue=queue_name), 0)
    (first,) = ledger.wait_for_starts(1)
    lasting.suspend()
    kill(first.pid, signal.SIGKILL)

    lasting.resume()

    runs = ledger.wait_for_starts(2, timeout=60)
    assert [run.kills for run in runs] == [0, 1]
    ledger.records.let_go()
    settled(queue_name, [job])


@pytest.mark.parametrize("seconds", [20, -3600])
def test_step_of_the_servers_clock_doubles_nothing(
    stepped, server_clock, busy, ledger, queue_name, seconds
):
    _, jobs = busy(stepped)

    server_clock.step(stepped, seconds)
    wait_for_service(queue_name)

    assert counts(queue_name).running == JOBS
    ledger.records.let_go()
    settled(queue_name, jobs)
    assert ledger.repeated() == {}
    assert {run.kills for run in ledger.runs()} == {0}


def test_step_back_of_the_servers_clock_does_not_keep_a_dead_workers_job(
    stepped, server_clock, busy, ledger, queue_name
):
    started, jobs = busy(stepped)
    pids = ledger.pids()
    victim = next(each for each in started if set(each.children()) & set(pids.values()))
    lost = {job for job, pid in pids.items() if pid in victim.children()}
    children = victim.children()
    victim.signal(signal.SIGKILL)
    for pid in children:
        kill(pid, signal.SIGKILL)

    server_clock.step(stepped, -3600)

    ledger.wait_for_starts(JOBS + len(lost), timeout=60)
    assert set(ledger.repeated()) == lost
    ledger.records.let_go()
    settled(queue_name, jobs)


def test_line_that_dies_in_silence_costs_no_lease(
    lasting, proxy, use, programs, ledger, queue_name
):
    use(lasting, LEASE=LEASE)
    hold = tasks.hold_async.using(queue=queue_name)
    programs(1)
    jobs = [ledger.schedule(hold, 0)]
    ledger.wait_for_starts(1)
    # From here on the queue is looked at all the time: there is no gap, and what ends is over.
    (behind,) = programs(1, connection=proxy.url)
    while not set(behind.children()) & set(ledger.pids().values()):
        jobs.append(ledger.schedule(hold, 0))
        ledger.wait_for_starts(len(jobs))
    # Only from its first renewal on has the process a line for that.
    wait_for_renewal(queue_name, jobs[-1])

    proxy.freeze()
    wait_for_service(queue_name)

    assert len(ledger.runs()) == len(jobs)
    ledger.records.let_go()
    settled(queue_name, jobs)
    assert len(ledger.runs()) == len(jobs)


def test_worker_that_is_cut_off_alone_loses_its_lease_and_another_runs_the_job(
    lasting, proxy, use, programs, ledger, queue_name
):
    use(lasting, LEASE=LEASE)
    (alone,) = programs(1, connection=proxy.url)
    job = ledger.schedule(tasks.hold.using(queue=queue_name), 0)
    ledger.wait_for_starts(1)
    programs(1)

    proxy.is_refusing = True
    proxy.cut()

    first, second = ledger.wait_for_starts(2, timeout=60)
    assert first.pid in alone.children()
    assert second.pid not in alone.children()
    assert second.kills == 1
    proxy.is_refusing = False
    ledger.records.let_go()
    settled(queue_name, [job])
    ledger.wait_for_ends(2)
    wait_until(
        lambda: counts(queue_name).running == 0, description="nothing is left to run"
    )
    assert counts(queue_name).counters["succeeded"] == 1
