"""The processes that live, as pages list them, and their orders."""

import asyncio
import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

import django_delayq
from django_delayq import InvalidSearch, QueueNotFound, conf, schedule
from django_delayq.conf import get_keyring
from django_delayq.core.worker_registry import RegistryKeys, give_order
from django_delayq.faults import describe_fault
from django_delayq.jobs import workers as asking
from django_delayq.jobs.workers import (
    Worker,
    WorkerState,
    aquiet_worker,
    astop_worker,
    aworkers,
    quiet_worker,
    stop_worker,
    workers,
)
from django_delayq.transport.clients import own_clients
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.worker import reports
from django_delayq.worker.outage import forgotten_s
from django_delayq.worker.process import DISMISSED
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Write twenty times a second, not every five seconds."""
    monkeypatch.setattr(reports, "REGISTER_EVERY_MS", 50.0)


def wait_for(queue, condition, what) -> Worker:
    """Return the process that serves a queue, once something is true of it."""

    def find():
        found = workers(queue)
        assert len(found) <= 1
        return next((each for each in found if condition(each)), None)

    return wait_until(find, description=what)


@every_server
def test_process_is_listed_with_what_it_runs(work, queue_name, records) -> None:
    before = datetime.now(UTC)
    work(threads=3, coroutines=7)
    sync = schedule(tasks.hold.using(queue=queue_name), 0)
    coroutine = schedule(tasks.hold_async.using(queue=queue_name), 0)

    found = wait_for(queue_name, lambda each: len(each.jobs) == 2, "both are listed")

    assert found.pid == os.getpid()
    assert found.name == f"{found.host}:{found.pid}"
    assert found.queues == [queue_name]
    assert found.version == django_delayq.__version__
    assert (found.threads, found.coroutines) == (3, 7)
    assert (found.busy_threads, found.busy_coroutines) == (1, 1)
    assert {(job.id, job.task) for job in found.jobs} == {
        (sync.id, tasks.hold.name),
        (coroutine.id, tasks.hold_async.name),
    }
    second = timedelta(seconds=1)
    now = datetime.now(UTC) + second
    assert all(before - second < job.since < now for job in found.jobs)
    assert before - second < found.started_at < found.seen_at < now
    assert found.memory > 1 << 20
    assert found.state is WorkerState.WORKING
    records.let_go()


def test_process_that_ends_is_listed_no_more(work, queue_name) -> None:
    worker = work()
    wait_for(queue_name, lambda each: True, "it is listed")

    worker.stop()

    assert workers(queue_name) == []


def test_processes_of_other_queues_are_left_out(work, configure, queue_name) -> None:
    configure(None, other={})
    work([f"{queue_name}-other"])
    wait_for(f"{queue_name}-other", lambda each: True, "it is listed")

    assert workers(queue_name) == []
    with pytest.raises(QueueNotFound):
        workers("nowhere")


def test_quiet_process_claims_no_more_and_goes_on_with_what_it_has(
    work, queue_name, records
) -> None:
    work()
    schedule(tasks.hold.using(queue=queue_name), 0)
    found = wait_for(queue_name, lambda each: each.jobs, "it runs a job")

    assert quiet_worker(found.id)
    wait_for(queue_name, lambda each: each.state is WorkerState.QUIET, "it is quiet")
    schedule(tasks.note.using(queue=queue_name), 0)
    second = work()
    wait_until(lambda: records.count("run") == 1, description="another one runs it")
    second.stop()
    job = schedule(tasks.note.using(queue=queue_name), 0)
    records.let_go()

    quiet = wait_for(queue_name, lambda each: not each.jobs, "what it had has ended")
    assert quiet.state is WorkerState.QUIET
    assert quiet.id == found.id
    wait_until(lambda: job.refresh() == "due", description="the job is due")
    seen_at = quiet.seen_at
    wait_for(queue_name, lambda each: each.seen_at > seen_at, "it lives on")
    assert job.refresh() == "due"


def test_quiet_process_does_not_spin(work, queue_name, records) -> None:
    worker = work()
    found = wait_for(queue_name, lambda each: True, "it is listed")
    quiet_worker(found.id)
    wait_for(queue_name, lambda each: each.state is WorkerState.QUIET, "it is quiet")
    schedule(tasks.note.using(queue=queue_name), 0)
    seen_at, turns = workers(queue_name)[0].seen_at, worker.loop.turns
    began = time.monotonic()

    # Ten of its writes.
    seen = {seen_at}
    wait_for(
        queue_name,
        lambda each: seen.add(each.seen_at) or len(seen) > 10,
        "it has written ten times",
    )

    # A loop that spins makes thousands of turns a second; one that writes, and waits, two for each write.
    seconds = time.monotonic() - began
    assert worker.loop.turns - turns < 100 + 100 * seconds


def test_process_that_was_told_to_stop_ends_in_order(work, queue_name, records) -> None:
    worker = work()
    schedule(tasks.count_up.using(queue=queue_name), 0, 10**6)
    found = wait_for(queue_name, lambda each: each.jobs, "it runs a job")

    assert stop_worker(found.id)

    assert worker.join() == DISMISSED
    assert workers(queue_name) == []


@every_server
def test_order_is_obeyed_without_waiting_for_the_next_write(
    work, queue_name, records, monkeypatch
) -> None:
    monkeypatch.setattr(reports, "REGISTER_EVERY_MS", NEVER_MS)
    first, second = work(), work()
    wait_until(lambda: len(workers(queue_name)) == 2, description="both are listed")

    assert quiet_worker(first.owner.hex())
    wait_until(lambda: first.loop.shutdown.is_quiet, description="it is quiet")
    assert stop_worker(first.owner.hex())

    assert first.join() == DISMISSED
    assert second.is_running
    assert not second.loop.shutdown.is_quiet


def test_order_that_may_not_be_announced_is_obeyed_with_the_next_write(
    work, queue_name, records, monkeypatch
) -> None:
    worker = work()
    found = wait_for(queue_name, lambda each: True, "it is listed")

    def refuse(queue):
        return Command(("EVAL", "return redis.error_reply('NOPERM no')", 0))

    monkeypatch.setattr(asking, "announce_order", refuse)

    assert stop_worker(found.id)
    assert worker.join() == DISMISSED


@pytest.mark.parametrize("order", [quiet_worker, stop_worker])
def test_order_without_a_server_says_what_every_call_says(settings, order) -> None:
    settings.DELAYQ = {"CONNECTION": "redis://localhost:1", "QUEUES": {"default": {}}}

    with pytest.raises(RedisConnectionError) as refused:
        order("0" * 16)

    fault = describe_fault(refused.value)
    assert fault.what == "The server does not answer."
    assert "DELAYQ['CONNECTION']" in fault.hint


def test_quiet_process_can_be_stopped(work, queue_name) -> None:
    worker = work()
    found = wait_for(queue_name, lambda each: True, "it is listed")
    quiet_worker(found.id)
    wait_for(queue_name, lambda each: each.state is WorkerState.QUIET, "it is quiet")

    stop_worker(found.id)

    assert worker.join() == DISMISSED


def test_worker_in_burst_mode_that_is_told_to_be_quiet_ends(
    work, queue_name, records
) -> None:
    # First the job: a burst worker that finds none ends.
    schedule(tasks.hold.using(queue=queue_name), 0)
    worker = work(is_burst=True)
    found = wait_for(queue_name, lambda each: each.jobs, "it runs a job")
    quiet_worker(found.id)
    wait_for(queue_name, lambda each: each.state != "working", "it has heard")
    records.let_go()

    worker.join()


def test_async_twins_do_the_same(work, queue_name) -> None:
    worker = work()
    wait_for(queue_name, lambda each: True, "it is listed")

    async def stop():
        (found,) = await aworkers(queue_name)
        return await aquiet_worker(found.id), await astop_worker(found.id)

    assert asyncio.run(stop()) == (True, True)
    assert worker.join() == DISMISSED


def test_order_for_a_process_that_is_not_there_says_so(configure) -> None:
    assert not quiet_worker("0" * 16)
    assert not stop_worker("nobody")


@pytest.mark.parametrize("wrong", ["", None, 7])
def test_id_that_is_none_is_refused(configure, wrong) -> None:
    with pytest.raises(InvalidSearch, match="is not the id of a worker's process"):
        stop_worker(wrong)


def sealed(worker_id, order) -> bytes:
    return get_keyring().seal(f"worker {worker_id}", order)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda id: b'{"do":"stop","till_ms":9e15}', "it is signed with the key"),
        (lambda id: sealed("another", b'{"do":"stop"}'), "does not fit"),
        (lambda id: sealed(id, b'{"do":"stop","till_ms":5}'), "came too late"),
        (lambda id: sealed(id, b'{"do":"stop"'), "cannot be read"),
        (
            lambda id: sealed(
                id, json.dumps({"do": "dance", "till_ms": 10**15}).encode()
            ),
            "this version does not know 'dance'",
        ),
    ],
)
def test_order_that_nobody_of_us_has_given_is_not_obeyed(
    work, queue_name, records, caplog, make, said
) -> None:
    worker = work()
    found = wait_for(queue_name, lambda each: True, "it is listed")

    run(
        own_clients.of_thread(), give_order(RegistryKeys.of(), found.id, make(found.id))
    )

    wait_until(lambda: said in caplog.text, description="it is logged")
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 1, description="it works on")
    assert worker.is_running
    assert caplog.text.count("an order for this process") == 1


def test_server_that_refuses_the_registry_keeps_no_job_from_running(
    work, queue_name, records, caplog, client
) -> None:
    registry = RegistryKeys.of()._replace(workers=f"delayq_workers:{queue_name}")
    client.set(registry.workers, "another application's")
    work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(conf.get_settings()), "registry", registry)
        wait_until(
            lambda: "it cannot be stopped remotely" in caplog.text,
            description="it is logged",
        )
        schedule(tasks.note.using(queue=queue_name), 0)
        wait_until(lambda: records.count("run") == 1, description="it works")

    assert caplog.text.count("it cannot be stopped remotely") == 1


@pytest.mark.parametrize("loses_all", [True, False])
def test_server_that_has_forgotten_is_noticed_once(
    work, queue_name, caplog, client, monkeypatch, loses_all
) -> None:
    # No other worker of this server is to be disturbed.
    registry = RegistryKeys.of(queue_name)
    monkeypatch.setitem(vars(conf.get_settings()), "registry", registry)
    work()

    def last_seen():
        return client.zrange(registry.workers_seen, 0, -1, withscores=True)

    ((worker, first_ms),) = wait_until(last_seen, description="it has registered")
    wait_until(lambda: last_seen()[0][1] > first_ms, description="it has done so again")
    assert "has forgotten" not in caplog.text

    if loses_all:
        client.delete(*registry)
    else:
        client.zadd(registry.workers_seen, {worker: first_ms - 1000})

    wait_until(lambda: "has forgotten" in caplog.text, description="it is logged")
    (told,) = last_seen()
    wait_until(lambda: last_seen()[0][1] > told[1], description="it has gone on")
    assert caplog.text.count("the server has forgotten what it took") == 1


@pytest.mark.parametrize(
    ("before_ms", "kept_ms", "now_ms", "ago_s"),
    [
        (0, None, 5_000, None),
        (1_000, 1_000, 5_000, None),
        (0, 1_000, 5_000, 4.0),
        (900, 1_000, 5_000, 4.0),
        (0, 1_000, 20_000, None),
        # The clock was set back, and another process has taken our stamp for one that is over.
        (0, 620_000, 20_000, None),
    ],
)
def test_loss_is_what_was_kept_a_moment_ago_and_is_not_known(
    before_ms, kept_ms, now_ms, ago_s
) -> None:
    assert forgotten_s(before_ms, kept_ms, now_ms, 10_000) == ago_s


def test_stopped_process_is_not_replaced_and_a_killed_one_is(
    program, queue_name, records
) -> None:
    program_of_two = program(
        *("--queue", queue_name, "--processes", "2"),
        environment={"WORKER_TEST_REGISTER_MS": "200"},
    )
    both = wait_until(
        lambda: len(found := workers(queue_name)) == 2 and found,
        description="both processes are listed",
    )
    first, second = both
    assert {first.pid, second.pid} == set(program_of_two.children())

    os.kill(second.pid, signal.SIGKILL)
    third = wait_until(
        lambda: [
            each
            for each in workers(queue_name)
            if each.pid not in (first.pid, second.pid)
        ],
        description="the killed one is replaced",
    )[0]
    assert stop_worker(first.id)
    wait_until(
        lambda: program_of_two.children() == [third.pid],
        description="the stopped one has ended",
    )
    assert stop_worker(third.id)

    assert program_of_two.wait() == 0
    assert "was stopped remotely and is not replaced; 1 others continue" in (
        program_of_two.log
    )
