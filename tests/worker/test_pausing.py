"""Paused queues and tasks: what workers do, and leave, until somebody resumes them or the time is over."""

import logging
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import get_job, pause, paused, resume, schedule, schedule_many
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.pauses.worker import PausesOfQueue
from django_delayq.jobs import registry
from django_delayq.transport.run import run
from django_delayq.worker import held_jobs
from tests.polling import wait_until
from tests.servers import LASTING
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.test_loop import commandstats
from tests.worker.workers import NEVER_MS, counts, part_in

SAYS = "claims nothing there"


@pytest.fixture(autouse=True)
def seen(caplog):
    caplog.set_level(logging.INFO, "django_delayq")
    return caplog


def told(seen, text):
    """Return how often the log has a text."""
    return sum(text in each.getMessage() for each in seen.records)


def keys_of(queue):
    return get_settings().queue(queue).keys


def ran(records, count, step="run"):
    wait_until(lambda: records.count(step) == count, description=f"{count} have run")


def lease_end(client, keys, job):
    return client.zscore(keys.leases, job.token) or 0


def looks_of(client, keys):
    """Return when a worker last looked at a queue with leases, by the record of its service."""
    return client.hget(keys.control, "service")


# A queue.


@every_server
def test_worker_starts_nothing_of_a_paused_queue_and_all_of_it_when_it_is_resumed(
    work, records, seen, queue_name
):
    work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    schedule(task, 0)
    ran(records, 1)

    pause(queue_name, reason="migration")
    wait_until(lambda: told(seen, SAYS), description="the worker knows")
    jobs = [schedule(task, 0, n) for n in range(20)]
    # It has looked since the last was scheduled: the message of a job that is the first makes it look.
    assert {job.refresh() for job in jobs} <= {State.DUE, State.SCHEDULED}
    assert resume(queue_name)

    ran(records, 21)
    assert told(seen, SAYS) == 1
    assert told(seen, "is claimed from again") == 1


@every_server
def test_pause_with_an_end_ends_by_itself_to_the_millisecond(work, records, queue_name):
    worker = work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    until = datetime.now(UTC) + timedelta(seconds=1)
    pause(queue_name, until=timedelta(seconds=1))
    schedule(task, 0)

    ran(records, 1)

    late_ms = records.all("run")[0]["at_ms"] - until.timestamp() * 1000
    # On an idle machine 1 ms; on this one it may be anything but early. Nobody told the worker, and no cap woke it.
    assert late_ms >= 0
    wait_until(
        lambda: not part_in(worker, queue_name, PausesOfQueue)._stored,
        description="the worker knows",
    )
    assert paused(queue_name) == []


def test_paused_queue_costs_the_server_no_more_than_an_idle_one(
    work, records, client, seen, queue_name, configure
):
    # What lies in the destination queue would wake who watches it, again and again.
    configure({"REDISSON": "3.52.0", "CODEC": "StringCodec"})
    keys = keys_of(queue_name)
    worker = work()
    task = tasks.note.using(queue=queue_name)
    schedule(task, 0)
    ran(records, 1)
    pause(queue_name)
    wait_until(lambda: told(seen, SAYS), description="the worker knows")
    schedule_many(task.prepare(0, n) for n in range(50))
    wait_until(
        lambda: client.llen(keys.queue.destination) == 50,
        description="all are transferred",
    )

    before, turns = commandstats(client), worker.loop.turns
    wait_until(
        lambda: commandstats(client).get("ping", 0) > before.get("ping", 0),
        description="its idle connections were asked for a sign of life, after 5 s",
    )

    # It looks every 2 s; another part of the worker looks after the queue.
    calls = commandstats(client)["evalsha"] - before["evalsha"]
    assert calls < 20
    assert worker.loop.turns - turns < 20
    assert records.count("run") == 1
    resume(queue_name)
    ran(records, 51)


def test_other_queues_go_on(configure, work, records, seen, queue_name):
    configure(other={})
    other = f"{queue_name}-other"
    work([queue_name, other])
    pause(queue_name)
    wait_until(lambda: told(seen, SAYS), description="the worker knows")
    schedule(tasks.note.using(queue=queue_name), 0, "paused")

    for n in range(20):
        schedule(tasks.note.using(queue=other), 0, n)

    ran(records, 20)
    assert "paused" not in [line["text"] for line in records.all("run")]


def test_what_runs_goes_on_to_its_end(work, records, client, queue_name):
    work(lease_s=2)
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    ran(records, 1, "start")
    pause(queue_name)
    keys = keys_of(queue_name)
    before = lease_end(client, keys, job)
    wait_until(
        lambda: lease_end(client, keys, job) > before, description="it is renewed"
    )

    records.let_go()

    ran(records, 1, "end")
    wait_until(
        lambda: counts(queue_name).counters.get("succeeded") == 1,
        description="it is settled",
    )
    assert records.count("start") == 1


@every_server
def test_from_the_reply_on_no_worker_takes_a_job_under_load(
    program, records, client, queue_name
):
    keys = keys_of(queue_name)
    task = tasks.nap.using(queue=queue_name)
    jobs = schedule_many(task.prepare(0, 0.002) for _ in range(3_000))
    for _ in range(2):
        program("--queue", queue_name, "--processes", "2", "--threads", "2")
    wait_until(lambda: records.count("end") >= 100, description="they work")

    for _ in range(3):
        pause(queue_name)
        # However long it took to come here, something waits.
        jobs += schedule_many(task.prepare(0, 0.002) for _ in range(200))
        waiting = set(client.zrange(keys.queue.timeout_set, 0, -1))
        wait_until(lambda: counts(queue_name).running == 0, description="all end")
        started = records.count("start")
        assert set(client.zrange(keys.queue.timeout_set, 0, -1)) == waiting
        before = records.count("end")
        assert started == before
        resume(queue_name)
        wait_until(
            lambda before=before: records.count("end") > before + 100,
            description="they work again",
        )

    wait_until(
        lambda: set(records.jobs("end")) == {job.id for job in jobs},
        description="all have run",
        timeout=90,
    )
    assert records.count("start") == len(jobs)


def test_worker_that_dies_while_its_queue_is_paused_loses_nothing(
    program, records, client, configure, queue_name
):
    configure({}, worker={"LEASE": 2})
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    worker = program("--queue", queue_name)
    ran(records, 1, "start")
    pause(queue_name)
    worker.destroy()
    records.let_go()

    other = program("--queue", queue_name)
    other.wait_for_log(SAYS)
    keys = keys_of(queue_name)
    wait_until(
        lambda: lease_end(client, keys, job) < time.time() * 1000,
        description="its lease is over",
    )
    before = looks_of(client, keys)
    wait_until(
        lambda: looks_of(client, keys) != before, description="a worker has looked"
    )
    assert job.refresh() is State.RUNNING
    assert records.count("start") == 1
    resume(queue_name)

    ran(records, 1, "end")
    assert records.count("start") == 2


def test_restart_of_the_server_ends_no_pause(
    private_server, settings, program, records, queue_name
):
    server = private_server(**LASTING)
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {"default": {}, queue_name: {}},
    }
    pause(queue_name, reason="migration")
    job = schedule(tasks.note.using(queue=queue_name), 0)
    worker = program("--queue", queue_name)
    worker.wait_for_log(SAYS)

    server.kill(signal.SIGKILL)
    worker.wait_for_log("the server does not serve")
    server.start()
    worker.wait_for_log("the server is back")

    assert [each.reason for each in paused(queue_name)] == ["migration"]
    assert job.refresh() is State.DUE
    resume(queue_name)
    ran(records, 1)


def test_burst_leaves_what_is_paused_and_says_so(work, records, seen, queue_name):
    task, other = tasks.note.using(queue=queue_name), tasks.pair.using(queue=queue_name)
    schedule_many(task.prepare(0, n) for n in range(3))
    schedule_many(other.prepare(0, n, n) for n in range(2))
    pause(queue_name)
    wait_until(lambda: counts(queue_name).due == 5, description="all are due")

    assert work(is_burst=True).join() is not None

    assert told(seen, "5 due jobs were left there") == 1
    resume(queue_name)
    pause(queue_name, task=tasks.note)
    work(is_burst=True).join()
    assert told(seen, "3 of its jobs are held there") == 1
    assert records.count("pair") == 2
    assert records.count("run") == 0


# A task.


@every_server
@pytest.mark.parametrize("name", ["note", "note_async"])
def test_jobs_of_a_paused_task_are_held_and_run_in_order_when_it_is_resumed(
    work, records, seen, queue_name, name
):
    task = getattr(tasks, name)
    work(cap_ms=NEVER_MS, threads=1, coroutines=1)
    schedule(tasks.pair.using(queue=queue_name), 0, 1, 1)
    ran(records, 1, "pair")

    pause(task=task, reason="the bank is down")
    # Jobs of the same ms have no order.
    jobs = [schedule(task.using(queue=queue_name), n / 500, n) for n in range(30)]
    schedule(tasks.pair.using(queue=queue_name), 0, 2, 2)

    ran(records, 2, "pair")
    wait_until(lambda: counts(queue_name).held == 30, description="all are held")
    assert records.count("run") == 0
    job = get_job(jobs[0].id)
    assert (job.state, job.attempts, job.kills) == (State.HELD, 0, 0)
    assert job.error["error"].startswith(
        f"task {task.name} on queue {queue_name} has been paused since"
    )
    assert job.error["error"].endswith(": the bank is down")
    assert told(seen, "holds its jobs") == 1

    resume(task=task)

    ran(records, 30)
    due = {job.id: job.start_time_ms for job in jobs}
    order = [due[job] for job in records.jobs("run")]
    assert order == sorted(order)
    assert {line["attempt"] for line in records.all("run")} == {1}
    assert told(seen, "runs again on queue") == 1


@every_server
def test_pause_of_a_task_with_an_end_ends_by_itself(work, records, client, queue_name):
    worker = work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    pause(queue_name, task=task)
    schedule(task, 0, 1)
    wait_until(lambda: counts(queue_name).held == 1, description="it is held")
    # Only now: however long that took, it is held when its pause gets an end.
    until = datetime.now(UTC) + timedelta(seconds=1)
    pause(queue_name, task=task, until=timedelta(seconds=1))

    ran(records, 1)

    assert records.all("run")[0]["at_ms"] >= until.timestamp() * 1000
    wait_until(
        lambda: not client.hexists(keys_of(queue_name).control, "paused_tasks"),
        description="the pause is forgotten",
    )
    schedule(task, 0, 2)
    ran(records, 2)
    assert not part_in(worker, queue_name, PausesOfQueue)._stored


def test_worker_that_starts_under_a_pause_holds_the_tasks_first_job(
    work, records, queue_name
):
    task = tasks.note.using(queue=queue_name)
    pause(queue_name, task=task)
    schedule(task, 0)

    work()

    wait_until(lambda: counts(queue_name).held == 1, description="it is held")
    assert records.count("run") == 0
    resume(queue_name, task=task)
    ran(records, 1)


def test_looks_at_held_jobs_release_none_of_a_paused_task(
    work, records, queue_name, monkeypatch
):
    monkeypatch.setattr(held_jobs, "LOOK_AT_HELD_MS", 10.0)
    looks = []
    turn = held_jobs.HeldJobs.turn
    monkeypatch.setattr(
        held_jobs.HeldJobs, "turn", lambda *args: looks.append(turn(*args)) or looks[-1]
    )
    task = tasks.note.using(queue=queue_name)
    pause(queue_name, task=task)
    schedule(task, 0)
    work()
    wait_until(lambda: counts(queue_name).held == 1, description="it is held")
    before = len(looks)

    def looked():
        schedule(tasks.nothing.using(queue=queue_name), 0)
        return len(looks) > before + 5

    wait_until(looked, description="it has looked at held jobs")

    assert counts(queue_name).held == 1
    assert not any(looks[before:])


def test_held_jobs_whose_resume_broke_off_are_released_by_a_worker(
    work, records, client, queue_name
):
    task = tasks.note.using(queue=queue_name)
    pause(queue_name, task=task)
    schedule(task, 0)
    work()
    wait_until(lambda: counts(queue_name).held == 1, description="it is held")

    run(client, pause_calls.resume(keys_of(queue_name), task=tasks.note.name))

    ran(records, 1)


def test_jobs_of_unknown_tasks_are_quarantined_in_time_though_another_is_paused(
    configure, work, queue_name, monkeypatch, caplog
):
    monkeypatch.setattr(held_jobs, "LOOK_AT_HELD_MS", 10.0)
    configure({}, worker={"HOLD_UNKNOWN": 0.05})
    pause(queue_name, task=tasks.note)
    schedule(tasks.note.using(queue=queue_name), 0)
    unknown = schedule(tasks.nothing.using(queue=queue_name), 0)
    monkeypatch.delitem(registry._tasks, tasks.nothing.name)
    work()

    def quarantined():
        return counts(queue_name).quarantined == 1 and counts(queue_name).held == 1

    wait_until(quarantined, description="the unknown one is in quarantine")
    # The log names the task and the job.
    line = f"that can run {tasks.nothing.name!r}, so these jobs were quarantined: {unknown.id}. Reason: TaskNotFound"
    wait_until(lambda: line in caplog.text, description="the log says so")
