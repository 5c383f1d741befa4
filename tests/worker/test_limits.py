"""Limits in workers: what starts and what waits, and what that costs."""

import dataclasses
import gc
import itertools
import os
import signal
import sys
import time

import pytest

from django_delayq import (
    InvalidArguments,
    Limit,
    clear_limit,
    find_jobs,
    limits,
    pause,
    resume,
    schedule_many,
    set_limit,
)
from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core import worker_code
from django_delayq.core.claim import Leased
from django_delayq.core.rates import numbers_of
from django_delayq.core.states import State
from django_delayq.core.worker_code import LOADED_MS
from django_delayq.jobs.draft import NO_EXTRAS
from django_delayq.testing import frozen_queue
from django_delayq.transport.run import run
from django_delayq.worker import upkeep
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.leased_job import Gate
from django_delayq.worker.payload import read as read_payload
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.test_loop import commandstats

pytestmark = pytest.mark.usefixtures("configure")


def send(task, count, queue, *args):
    return schedule_many(
        task.using(queue=queue).prepare(0, *args) for _ in range(count)
    )


def most_at_a_time(records, **fields):
    """Return how many jobs ran at the same time, at most."""
    running = most = 0
    for line in records.all():
        if fields.items() <= line.items():
            running += {"start": 1, "end": -1}.get(line["step"], 0)
            most = max(most, running)
    return most


def ran(records, count, step="end"):
    wait_until(lambda: records.count(step) == count, description=f"{count} have run")


def test_concurrency_of_a_queue_holds_for_all_its_workers(
    configure, work, records, queue_name
):
    configure({"CONCURRENCY": 3})
    work()
    work()

    send(tasks.nap, 24, queue_name, 0.02)

    ran(records, 24)
    assert most_at_a_time(records) == 3


def test_no_job_of_a_key_runs_beside_another_of_it(work, records, queue_name):
    work()
    work()
    keys = [f"k{n % 5}" for n in range(40)]

    schedule_many(
        tasks.one_of_a_key.using(queue=queue_name).prepare(0, key, 0.01) for key in keys
    )

    ran(records, 40)
    for key in set(keys):
        assert most_at_a_time(records, key=key) == 1


def test_job_that_is_held_back_says_why(work, records, queue_name):
    work()
    first, second = schedule_many(
        tasks.one_of_a_key.using(queue=queue_name).prepare(0, "k", 1.0)
        for _ in range(2)
    )
    ran(records, 1, "start")

    wait_until(lambda: second.refresh() is State.HELD, description="it is held")

    assert second.error["error"] == "limit of-key k: 1 of 1"
    assert list(find_jobs(queue=queue_name, state=State.HELD)) == [second]
    assert second.cancel()
    assert first.refresh() is State.RUNNING


def test_limit_is_raised_while_jobs_wait(work, records, queue_name):
    work()
    send(tasks.one_of_a_key, 4, queue_name, "k", 0.5)
    ran(records, 1, "start")
    assert next(map(str, limits(queue_name))) == (
        f"limit of-key on queue {queue_name}: 1 at a time"
    )

    set_limit(queue_name, limit="of-key", concurrency=3)

    ran(records, 3, "start")
    assert most_at_a_time(records, key="k") == 3
    ran(records, 4)
    assert clear_limit(queue_name, limit="of-key") is True
    assert clear_limit(queue_name, limit="of-key") is False


def test_limits_hold_from_the_first_claim_after_the_server_has_come_back_empty(
    private_server, settings, configure, work, records, queue_name
):
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    for _ in range(2):
        work()
    send(tasks.one_of_a_key, 2, queue_name, "k", 0.01)
    ran(records, 2)

    server.kill(signal.SIGKILL)
    server.start()
    # Nobody listens yet: the first claims meet all of them.
    send(tasks.one_of_a_key, 6, queue_name, "k", 0.1)

    ran(records, 8)
    assert most_at_a_time(records, key="k") == 1


def test_limits_hold_though_nobody_has_noticed_that_they_are_forgotten(
    client, work, records, queue_name
):
    work()
    send(tasks.one_of_a_key, 2, queue_name, "k", 0.01)
    ran(records, 2)

    client.delete(get_settings().queue(queue_name).keys.control)
    send(tasks.one_of_a_key, 6, queue_name, "k", 0.1)

    ran(records, 8)
    assert most_at_a_time(records, key="k") == 1
    assert f"limit of-key on queue {queue_name}: 1 at a time" in map(
        str, limits(queue_name)
    )


def test_rate_of_a_task_paces_its_starts(work, records, queue_name):
    work()
    began_s = time.monotonic()

    send(tasks.paced, 12, queue_name)

    ran(records, 12, "run")
    # Two at once, and then one each 50 ms.
    assert time.monotonic() - began_s >= 0.5


def test_rate_of_a_queue_is_set_while_it_is_worked_on(work, records, queue_name):
    work()
    set_limit(queue_name, rate="100/s burst 10")
    began_s = time.monotonic()

    send(tasks.note, 60, queue_name)

    ran(records, 60, "run")
    # Ten at once, and then one each 10 ms.
    assert time.monotonic() - began_s >= 0.5


def test_queue_whose_limit_is_full_costs_no_more_claims_than_an_idle_one(
    configure, work, records, client, queue_name
):
    # What lies in the destination queue would wake who watches it, again and again.
    configure({"REDISSON": "3.52.0", "CODEC": "StringCodec", "CONCURRENCY": 1})
    worker = work()
    schedule_many(tasks.hold.using(queue=queue_name).prepare(0) for _ in range(20))
    ran(records, 1, "start")
    keys = get_settings().queue(queue_name).keys
    wait_until(
        lambda: client.llen(keys.queue.destination) == 19,
        description="all are transferred",
    )

    before, turns = commandstats(client), worker.loop.turns
    wait_until(
        lambda: commandstats(client).get("ping", 0) > before.get("ping", 0),
        description="its idle connections were asked for a sign of life, after 5 s",
    )

    calls = commandstats(client)["evalsha"] - before["evalsha"]
    assert calls < 20
    assert worker.loop.turns - turns < 20
    records.let_go()
    ran(records, 20)


def test_burst_runs_what_the_rate_of_its_queue_holds_back(
    configure, work, records, queue_name
):
    configure({"RATE": "20/s burst 2"})
    send(tasks.note, 8, queue_name)

    worker = work(is_burst=True)

    worker.join()
    assert records.count("run") == 8


def test_jobs_that_are_older_than_the_limit_of_their_task_get_it(
    work, records, client, queue_name
):
    task = tasks.one_of_a_key.using(queue=queue_name)
    jobs = [task.prepare(0, "k", 0.01) for _ in range(12)]
    for job in jobs:
        job.draft.extras = NO_EXTRAS
    schedule_many(jobs)

    work()
    work()

    ran(records, 12)
    assert most_at_a_time(records, key="k") == 1
    assert sorted(records.jobs("end")) == sorted(job.id for job in jobs)


@pytest.fixture
def with_limit(monkeypatch):
    """Have the task be scheduled with another limit than the workers' code has."""
    options = tasks.one_of_a_key.options

    def with_limit(limit):
        changed = dataclasses.replace(options, limit=limit)
        monkeypatch.setattr(tasks.one_of_a_key, "options", changed)

    return with_limit


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    "old",
    [
        Limit("renamed", concurrency=8, key=lambda key, *_: key),
        Limit("of-key", concurrency=1, key=lambda key, seconds: str(seconds)),
    ],
    ids=["renamed", "another key"],
)
def test_waiting_job_has_the_present_limit_of_its_task_when_it_starts(
    work, records, client, queue_name, with_limit, old, is_declared
):
    keys = get_settings().queue(queue_name).keys
    present = tasks.one_of_a_key.options.limit
    if is_declared:
        # A worker of the code before still lives.
        numbers = numbers_of(concurrency=old.concurrency)
        run(
            client,
            worker_code.declare(
                keys, [(old.name, numbers)], owner=b"process1", loaded_ms=0
            ),
        )
    with_limit(old)
    jobs = [
        tasks.one_of_a_key.using(queue=queue_name).schedule(0, "k", n / 1000)
        for n in range(12)
    ]
    with_limit(present)
    jobs += send(tasks.one_of_a_key, 4, queue_name, "k", 0.01)

    work()
    work()

    ran(records, 16)
    assert most_at_a_time(records, key="k") == 1
    assert sorted(records.jobs("end")) == sorted(job.id for job in jobs)
    wait_until(lambda: not client.exists(keys.slots, keys.held), description="no slots")


def succeeded(ran):
    return [each.args for each in ran if each.outcome == "succeeded"]


def test_rate_of_the_present_limit_paces_jobs_of_another(records, with_limit):
    with frozen_queue() as q:
        with_limit(Limit("renamed", concurrency=8))
        for n in range(3):
            tasks.one_of_a_key.schedule(n, n)
        with_limit(Limit("now", rate="1/m"))

        first = q.advance(seconds=30)
        second = q.advance(minutes=1)
        third = q.advance(minutes=1)

        assert list(map(succeeded, (first, second, third))) == [[[0]], [[1]], [[2]]]


def test_job_whose_key_is_another_each_time_runs(records, with_limit):
    numbers = itertools.count()
    with frozen_queue() as q:
        with_limit(Limit("restless", concurrency=1, key=lambda *_: next(numbers)))
        tasks.one_of_a_key.schedule(0, 1)
        tasks.one_of_a_key.schedule(0, 2)

        assert succeeded(q.run_due()) == [[1], [2]]


def test_job_of_a_paused_task_gets_the_present_limit_once_it_is_resumed(
    records, with_limit
):
    with frozen_queue() as q:
        with_limit(Limit("renamed", concurrency=8))
        for _ in range(2):
            tasks.one_of_a_key.schedule(0, 1)
        with_limit(Limit("now", rate="1/m"))
        pause(task=tasks.one_of_a_key)

        held = q.run_due()
        resume(task=tasks.one_of_a_key)
        first = q.run_due()
        second = q.advance(minutes=1)

        assert [each.outcome for each in held] == ["held"] * 2
        assert list(map(succeeded, (first, second))) == [[[1]], [[1]]]


def test_key_of_a_limit_is_not_asked_while_the_task_is_paused(records, with_limit):
    with frozen_queue() as q:
        tasks.one_of_a_key.schedule(0, 1)
        with_limit(Limit("broken", concurrency=1, key=lambda *_: 1 / 0))
        pause(task=tasks.one_of_a_key)

        held = q.run_due()
        resume(task=tasks.one_of_a_key)

        assert [each.outcome for each in held] == ["held"]
        assert [each.outcome for each in q.run_due()] == ["retrying"]


def calls_to_take_in(gates, queue_name):
    """Count the calls that an attempt makes to take in a job without a limit."""
    queue = get_settings().queue(queue_name)
    job = tasks.note.using(queue=queue_name).prepare(0)
    payload = job.draft.new.payload
    leased = Leased(job.token, 0, 0, 0, payload, False, b"request.")
    attempt = Attempt(queue, leased, boottime_ms() + 60_000, 0.0, gates)
    read = read_payload(attempt.queue, attempt.leased)
    calls = []

    def note(frame, event, called):
        if event == "call":
            calls.append(frame.f_code.co_name)

    gc.disable()  # or it calls the finalizers of others in between
    sys.setprofile(note)
    try:
        assert attempt.take(read) is tasks.note
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_job_without_a_limit_does_not_pay_for_the_limits_of_other_tasks(queue_name):
    gates = [Gate(frozenset({"another"}), lambda attempt: None)]
    # What a process does once, the first does.
    calls_to_take_in((), queue_name)

    assert calls_to_take_in(gates, queue_name) == calls_to_take_in((), queue_name)


def test_limit_that_no_task_has_is_not_set(queue_name):
    with pytest.raises(
        InvalidArguments, match=r"'of-kye': no task has .* Did you mean 'of-key'\?"
    ):
        set_limit(queue_name, limit="of-kye", concurrency=3)

    assert limits(queue_name) == []
    assert clear_limit(queue_name, limit="of-kye") is False


def test_limit_that_only_a_worker_knows_is_set(client, queue_name):
    keys = get_settings().queue(queue_name).keys
    declared = [("of-another-project", numbers_of(concurrency=1))]
    run(client, worker_code.declare(keys, declared, owner=b"process1", loaded_ms=0))

    set_limit(queue_name, limit="of-another-project", concurrency=3)

    (found,) = limits(queue_name)
    assert found.concurrency == 3


def looks_after(client, monkeypatch, queue_name, most, *, later_ms):
    """Return a process that begins, whose code has a limit, and was loaded later than ours by so much."""
    monkeypatch.setattr(worker_code, "LOADED_MS", LOADED_MS + later_ms)
    limit = Limit("of-key", concurrency=most)
    monkeypatch.setattr(upkeep, "all_limits", lambda: {"of-key": limit})
    settings = get_settings().queue(queue_name)
    process = upkeep.Upkeep(client, settings, os.urandom(8))
    process.begin()
    return process


def test_process_of_old_code_that_restarts_leaves_the_limits_of_later_code(
    client, monkeypatch, queue_name
):
    looks_after(client, monkeypatch, queue_name, 5, later_ms=-2_000)
    looks_after(client, monkeypatch, queue_name, 1, later_ms=-1_000)

    restarted = looks_after(client, monkeypatch, queue_name, 5, later_ms=-2_000)
    restarted.turn(0.0)

    (limit,) = limits(queue_name)
    assert limit.concurrency == 1


def test_process_says_between_its_steps_which_limits_its_code_has(
    client, monkeypatch, queue_name
):
    process = looks_after(client, monkeypatch, queue_name, 5, later_ms=0)
    process.turn(monotonic_ms())
    assert process.next_ms < monotonic_ms() + worker_code.SILENT_MS / 2
    client.hdel(get_settings().queue(queue_name).keys.control, "limit:of-key")

    for _ in range(3):
        process.turn(monotonic_ms())

    assert limits(queue_name)
