"""Leases are renewed while what they are for can run, and no longer."""

import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from django_delayq import conf, schedule
from django_delayq.clock import boottime_ms
from django_delayq.core import claim as claim_calls
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidTask, LeaseLost
from django_delayq.jobs.context import running_job
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker import attempt as attempts
from django_delayq.worker import leased_job
from django_delayq.worker import watchdog as watchdogs
from django_delayq.worker.process import UNABLE
from django_delayq.worker.watchdog import Watchdog
from tests.faults.able import tasks as able
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts

LEASE_S = 3.0


def leases_go_by(count):
    end_s = time.monotonic() + count * LEASE_S
    wait_until(lambda: time.monotonic() > end_s, description="leases go by")


@pytest.mark.parametrize("task", [tasks.hold, tasks.hold_async])
def test_leases_of_what_runs_are_renewed(work, records, queue_name, task):
    for _ in range(2):
        work(lease_s=LEASE_S)
    job = schedule(task.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    leases_go_by(2)
    records.let_go()

    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it is done")
    assert records.count("start") == 1


def test_a_loop_that_is_blocked_for_longer_than_a_renewal_costs_no_lease(
    work, records, queue_name
):
    for _ in range(2):
        work(lease_s=LEASE_S)
    bystander = schedule(tasks.hold_async.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    blocking = schedule(tasks.block_loop.using(queue=queue_name), 0, LEASE_S * 0.7)
    wait_until(lambda: records.count("end") == 1, description="it was blocked")

    leases_go_by(1)
    records.let_go()

    for job in (bystander, blocking):
        wait_until(
            lambda job=job: job.refresh() is State.SUCCEEDED, description="it is done"
        )
    assert records.count("start") == 2


def test_a_loop_that_is_blocked_for_longer_than_a_lease_ends_its_process(
    work, records, queue_name, monkeypatch, caplog
):
    monkeypatch.setattr(watchdogs, "STUCK_AFTER_MS", 500)
    worker = work(lease_s=LEASE_S, grace_s=0)
    job = schedule(able.block_until_told.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    assert worker.join() == UNABLE

    assert "the event loop has given no sign of life for" in caplog.text
    # Not given back: that it takes its process along counts.
    assert job.refresh() is State.RUNNING
    records.let_go()
    # As its supervisor does.
    keys = conf.get_settings().queue(queue_name).keys
    run(own_clients.of_thread(), claim_calls.recover(keys, owner=worker.owner))
    work()
    wait_until(lambda: records.count("start") == 2, description="it runs again")
    assert records.all("start")[1]["kills"] == 1


def test_a_renewal_that_fails_is_not_tried_again_at_once(monkeypatch):
    """A server that refuses connections does so in no time: whoever asks again at once does nothing else."""
    tried_ms = []

    def renew(client, attempts, *, lease_ms):
        tried_ms.append(boottime_ms())
        raise RedisConnectionError("refused")

    monkeypatch.setattr(watchdogs, "renew", renew)
    watchdog = Watchdog(
        own_clients.make(),
        lease_ms=300,
        executors=(),
        running=list,
        cannot_work=pytest.fail,
    )

    watchdog.start()
    wait_until(lambda: len(tried_ms) >= 4, description="it tries on")
    watchdog.stop()

    assert tried_ms[3] - tried_ms[0] >= 3 * watchdogs.TICK_MS


def test_a_renewal_that_one_queue_refuses_is_tried_again_soon_and_told_once(
    monkeypatch, caplog
):
    tried_ms = []

    def renew(client, attempts, *, lease_ms):
        tried_ms.append(boottime_ms())
        return [], {"mail": ResponseError("NOREPLICAS Not enough good replicas")}

    monkeypatch.setattr(watchdogs, "renew", renew)
    watchdog = Watchdog(
        own_clients.make(),
        # The second renewal would be due in a hundred seconds.
        lease_ms=300_000,
        executors=(),
        running=list,
        cannot_work=pytest.fail,
    )
    monkeypatch.setattr(watchdog, "_renew_ms", 0.0)
    monkeypatch.setattr(watchdog, "_ticked_ms", boottime_ms())

    watchdog._tick()
    wait_until(
        lambda: watchdog._tick() or len(tried_ms) >= 3, description="it tries on"
    )

    assert tried_ms[2] - tried_ms[0] >= 2 * watchdogs.TICK_MS
    assert caplog.text.count("leases cannot be renewed") == 1


def test_busy_threads_are_no_stuck_ones(work, records, queue_name, monkeypatch, caplog):
    monkeypatch.setattr(watchdogs, "STUCK_AFTER_MS", 500)
    worker = work(threads=1, lease_s=2)
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    leases_go_by(1)
    records.let_go()

    wait_until(lambda: counts(queue_name).running == 0, description="all is settled")
    assert job.refresh() is State.SUCCEEDED
    assert worker.is_running
    assert "no sign of life" not in caplog.text


def test_nothing_starts_after_the_machine_was_suspended_for_longer_than_a_lease(
    work, records, queue_name, monkeypatch
):
    asked = []

    def suspended_ms():
        # What was suspended after the claim: this clock goes on, and the monotonic one does not. An attempt that is about
        # to start looks twice before it is given back.
        asked.append(1)
        return clock() + (LEASE_S + 1) * 1000 * (len(asked) <= 2)

    clock = attempts.boottime_ms
    for module in (attempts, leased_job):
        monkeypatch.setattr(module, "boottime_ms", suspended_ms)
    work(lease_s=LEASE_S)

    schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 1, description="it has run")
    # The first looks were at its start, which did not come to be.
    assert len(asked) > 2
    assert records.all("run")[0]["kills"] == 0


def test_check_raises_where_the_lease_is_over_and_not_before(
    work, records, queue_name, monkeypatch
):
    seen = []

    def look(attempt):
        begin(attempt)
        token = running_job.set(attempt.job)
        try:
            job = running_job.get()()
            job.check()
            for is_lost, end_ms in ((True, attempt.lease_end_ms), (False, 0.0)):
                attempt.is_lost, kept_ms = is_lost, attempt.lease_end_ms
                attempt.lease_end_ms = end_ms
                with pytest.raises(LeaseLost, match="may be running elsewhere"):
                    job.check()
                attempt.is_lost, attempt.lease_end_ms = False, kept_ms
            seen.append(job.id)
        finally:
            running_job.reset(token)
        return True

    begin = attempts.Attempt.may_start
    monkeypatch.setattr(attempts.Attempt, "may_start", look)
    work()

    job = schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 1, description="it has run")
    assert seen == [job.id]
    with pytest.raises(InvalidTask, match="does not run here"):
        job.check()
