"""`durable=`: a call returns once replicas and disks have what it wrote; else it says what is stored and who lacks it."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.connection import UnixDomainSocketConnection

from django_delayq import (
    Batch,
    Durable,
    InvalidSettings,
    InvalidTask,
    Job,
    MaybeScheduled,
    NotDurable,
    State,
    aschedule,
    aschedule_many,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.conf import find_problems, read_settings
from django_delayq.core.durability import as_durable
from django_delayq.health.problem import Level
from django_delayq.health.problems import find_server_problems
from django_delayq.testing import captured, frozen_queue
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.jobs.samples import add, anything, once
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Replicated
from tests.servers import Server

#: Long enough for a replica that answers, too short for a test to notice.
SHORT = Durable(replicas=1, timeout=0.05)
#: For a replica that answers, on any machine.
LONG = Durable(replicas=1, timeout=timedelta(seconds=25))
#: A call waits for half of this at most.
PATIENT = "&socket_timeout=60"
QUEUE = "durable"

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def shared_pair(server_kind: str) -> Iterator[Replicated]:
    """A primary with one replica. To make them takes a second, so most tests share them."""
    started: list[Server] = []

    def start(**options: str) -> Server:
        started.append(Server(server_kind, options))
        return started[-1].start()

    yield Replicated(start, 1)
    for server in started:
        server.stop()


@pytest.fixture
def pair(shared_pair: Replicated, settings: Any) -> Iterator[Replicated]:
    """The pair, empty, and a queue that waits for nothing by itself."""
    with shared_pair.primary.client() as client:
        client.flushall()
        yield _served(shared_pair, settings)
        client.config_set("maxmemory", "0")


@pytest.fixture
def own_pair(private_server: Start, settings: Any) -> Replicated:
    """A pair that may be broken."""
    return _served(Replicated(private_server, 1), settings)


def _served(pair: Replicated, settings: Any) -> Replicated:
    settings.DELAYQ = {
        "CONNECTION": pair.primary.socket_url + PATIENT,
        "QUEUES": {QUEUE: {}, "waits": {"DURABLE": SHORT}},
    }
    pair.wait_for_replicas()
    return pair


@pytest.fixture
def deaf(pair: Replicated) -> Iterator[Replicated]:
    """A pair whose replica acknowledges nothing."""
    pair.replicas[0].suspend()
    yield pair
    pair.replicas[0].resume()


def made(call: Any) -> Any:
    return asyncio.run(call) if inspect.iscoroutine(call) else call


async def _alone(task: Any) -> Any:
    return await aschedule(task, LATER, 1)


async def _many(task: Any) -> Any:
    return (await aschedule_many([task.prepare(LATER, 1)]))[0]


WAYS: dict[str, Callable[[Any], Any]] = {
    "sync": lambda task: schedule(task, LATER, 1),
    "async": _alone,
    "many": lambda task: schedule_many([task.prepare(LATER, 1)])[0],
    "amany": _many,
}
ways = pytest.mark.parametrize("way", WAYS)


def stored_in(server: Server, queue: str = QUEUE) -> int:
    with server.client() as client:
        count: int = client.zcard(f"redisson_delay_queue_timeout:{{{queue}}}")
    return count


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that this process writes to a server, on sync connections."""
    writes: list[bytes] = []
    send = UnixDomainSocketConnection.send_packed_command

    def sending(connection: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        writes.append(b"".join(command))
        send(connection, command, *args, **kwargs)

    monkeypatch.setattr(UnixDomainSocketConnection, "send_packed_command", sending)
    return writes


def waits_in(writes: list[bytes], command: bytes = b"$4\r\nWAIT\r\n") -> int:
    return b"".join(writes).count(command)


# What a call returns for


@ways
def test_replica_has_the_job_when_the_call_returns(pair: Replicated, way: str) -> None:
    job = made(WAYS[way](add.using(queue=QUEUE, durable=LONG)))

    assert job.state is State.SCHEDULED
    assert stored_in(pair.replicas[0]) == 1


@ways
def test_error_carries_the_job_that_is_stored(deaf: Replicated, way: str) -> None:
    with pytest.raises(NotDurable) as caught:
        made(WAYS[way](add.using(queue=QUEUE, durable=SHORT)))

    error = caught.value
    assert (error.acknowledged, error.wanted, error.is_on_disk) == (0, 1, False)
    assert error.jobs == [error.job]
    assert error.job.state is State.SCHEDULED
    assert get_job(error.job.id).args == [1]
    assert error.job.id in str(error)
    assert "0 of 1 replicas" in str(error)


def test_same_job_is_waited_for_again_and_not_stored_twice(deaf: Replicated) -> None:
    with pytest.raises(NotDurable) as caught:
        schedule(add.using(queue=QUEUE, durable=SHORT), LATER, 1)
    with pytest.raises(NotDurable):
        schedule_many(caught.value.jobs)
    deaf.replicas[0].resume()
    job = caught.value.job
    job.draft.extras = job.draft.extras.__class__(durable=LONG)

    assert schedule_many([job]) == [job]
    assert stored_in(deaf.replicas[0]) == 1


def test_call_and_wait_leave_in_one_write(
    pair: Replicated, writes: list[bytes]
) -> None:
    task = add.using(queue=QUEUE, durable=LONG)
    schedule(task, LATER, 1)
    writes.clear()

    schedule(task, LATER, 1)

    assert len(writes) == 1
    assert writes[0].count(b"EVALSHA") == 1
    assert waits_in(writes) == 1


def test_call_without_durable_sends_no_wait(
    pair: Replicated, writes: list[bytes]
) -> None:
    schedule(add.using(queue=QUEUE), LATER, 1)
    schedule_many([add.using(queue=QUEUE).prepare(LATER, n) for n in range(700)])

    assert b"EVALSHA" in b"".join(writes)
    assert waits_in(writes) == 0


@pytest.mark.parametrize("jobs", [1, 1_700])
def test_many_wait_once_alone_and_once_at_the_end(
    pair: Replicated, writes: list[bytes], jobs: int
) -> None:
    task = add.using(queue=QUEUE, durable=LONG)
    # The script is there from now on.
    schedule_many([task.prepare(LATER, 0)])
    writes.clear()

    stored = schedule_many([task.prepare(LATER, n) for n in range(jobs)])

    assert len(stored) == jobs
    assert stored_in(pair.replicas[0]) == jobs + 1
    assert waits_in(writes) == (1 if jobs == 1 else 2)


def test_error_of_many_carries_all_of_them(deaf: Replicated) -> None:
    task = add.using(queue=QUEUE, durable=SHORT)
    jobs = [task.prepare(LATER, n) for n in range(1_200)]

    with pytest.raises(NotDurable, match=r"1,200 jobs, durable:\S+ first, are stored"):
        schedule_many(jobs)

    assert stored_in(deaf.primary) == 1_200


def test_one_durable_job_among_many_makes_all_wait(deaf: Replicated) -> None:
    jobs = [add.using(queue=QUEUE).prepare(LATER, n) for n in range(3)]
    jobs.append(add.using(queue=QUEUE, durable=SHORT).prepare(LATER, 4))

    with pytest.raises(NotDurable) as caught:
        schedule_many(jobs)

    assert caught.value.jobs == jobs


def test_errors_on_the_way_say_that_nothing_was_waited_for(pair: Replicated) -> None:
    task = add.using(queue=QUEUE, durable=LONG)

    def failing() -> Iterator[Job[int]]:
        for n in range(700):
            yield task.prepare(LATER, n)
        raise KeyError("gone")

    with pytest.raises(MaybeScheduled, match="did not wait until 1 replica") as e:
        schedule_many(failing())

    assert len(e.value.scheduled) == 500


# What WAIT counts from


@pytest.mark.parametrize("way", ["sync", "async", "amany"])
def test_repeat_after_a_lost_reply_waits_though_the_job_is_stored(
    deaf: Replicated, settings: Any, way: str
) -> None:
    proxy = Proxy(deaf.primary)
    try:
        settings.DELAYQ = {"CONNECTION": proxy.url, "QUEUES": {QUEUE: {}}}
        made(WAYS[way](add.using(queue=QUEUE)))
        struck = proxy.lose_reply_to(b"\r\nWAIT\r\n")

        with pytest.raises(NotDurable) as caught:
            made(WAYS[way](add.using(queue=QUEUE, durable=SHORT)))
    finally:
        proxy.close()

    assert struck.is_set()
    assert caught.value.acknowledged == 0
    assert stored_in(deaf.primary) == 2


def test_lost_reply_to_the_wait_of_many_leaves_all_of_them_unknown(
    pair: Replicated, settings: Any
) -> None:
    proxy = Proxy(pair.primary)
    task = add.using(queue=QUEUE, durable=LONG)
    jobs = [task.prepare(LATER, n) for n in range(700)]
    try:
        settings.DELAYQ = {"CONNECTION": proxy.url, "QUEUES": {QUEUE: {}}}

        def prepared() -> Iterator[Job[int]]:
            yield from jobs
            # The first call has waited by itself.
            proxy.lose_reply_to(b"\r\nWAIT\r\n")

        with pytest.raises(MaybeScheduled) as caught:
            schedule_many(prepared())
        stored = schedule_many(caught.value.unsent)
    finally:
        proxy.close()

    assert (len(caught.value.scheduled), len(caught.value.unknown)) == (0, 700)
    assert stored == caught.value.unsent
    assert stored_in(pair.primary) == 700


def test_call_that_finds_it_done_waits_for_what_did_it(
    deaf: Replicated, settings: Any
) -> None:
    job = schedule(add.using(queue=QUEUE), LATER, 1)
    assert job.cancel()
    settings.DELAYQ = {**settings.DELAYQ}  # new connections, which wrote nothing

    with pytest.raises(NotDurable):
        job.cancel(durable=SHORT)


def test_holder_of_the_unique_key_is_waited_for(
    deaf: Replicated, settings: Any
) -> None:
    schedule(once.using(queue=QUEUE), LATER, 1)
    settings.DELAYQ = {**settings.DELAYQ}

    with pytest.raises(NotDurable) as caught:
        schedule(once.using(queue=QUEUE, durable=SHORT), LATER, 1)

    assert not caught.value.job.created


def test_replaced_job_is_waited_for(deaf: Replicated) -> None:
    task = once.using(queue=QUEUE, on_duplicate="postpone")
    schedule(task, LATER, 1)

    with pytest.raises(NotDurable) as caught:
        schedule(task.using(durable=SHORT), 2 * LATER, 1)

    assert caught.value.job.replaced


def test_full_server_cancels_durably(pair: Replicated) -> None:
    job = schedule(add.using(queue=QUEUE), LATER, 1)
    with pair.primary.client() as client:
        client.config_set("maxmemory", "1")

    assert job.cancel(durable=LONG)


# Changes of a job

CHANGES: dict[str, tuple[Callable[..., Any], State]] = {
    "cancel": (Job.cancel, State.CANCELLED),
    "acancel": (Job.acancel, State.CANCELLED),
    "reschedule": (lambda job, **kw: job.reschedule(9_000, **kw), State.SCHEDULED),
    "areschedule": (lambda job, **kw: job.areschedule(9_000, **kw), State.SCHEDULED),
    "run_now": (Job.run_now, State.SCHEDULED),
    "arun_now": (Job.arun_now, State.SCHEDULED),
    "reprioritize": (lambda job, **kw: job.reprioritize(5, **kw), State.SCHEDULED),
    "areprioritize": (lambda job, **kw: job.areprioritize(5, **kw), State.SCHEDULED),
}
changes = pytest.mark.parametrize("name", CHANGES)


@changes
def test_change_waits_and_is_made_all_the_same(deaf: Replicated, name: str) -> None:
    change, state = CHANGES[name]
    job = schedule(add.using(queue=QUEUE), LATER, 1)

    with pytest.raises(NotDurable, match=f"Call {name.removeprefix('a')}") as caught:
        made(change(job, durable=SHORT))

    assert caught.value.job is job
    assert job.state is state
    deaf.replicas[0].resume()
    assert made(change(job, durable=LONG))


@changes
def test_queue_says_what_changes_wait_for(deaf: Replicated, name: str) -> None:
    change, _ = CHANGES[name]
    job = schedule(add.using(queue="waits", durable=False), LATER, 1)

    with pytest.raises(NotDurable):
        made(change(job))
    assert made(change(job, durable=False))


@pytest.mark.parametrize("change", ["retry", "discard", "aretry", "adiscard"])
def test_dead_letter_is_retried_and_discarded_durably(
    deaf: Replicated, change: str
) -> None:
    with deaf.primary.client() as client:
        job = schedule(add.using(queue=QUEUE), 0, 1)
        hand = Hand(client, QUEUE)
        hand.bury(hand.take())
    job.refresh()
    assert job.state is State.DEAD

    with pytest.raises(NotDurable, match=f"{change.removeprefix('a')} it again"):
        made(getattr(job, change)(durable=SHORT))


def test_change_that_is_not_made_is_not_waited_for(deaf: Replicated) -> None:
    job = schedule(add.using(queue=QUEUE), LATER, 1)
    job.cancel()

    assert not job.reschedule(5, durable=Durable(replicas=1, timeout=0.01))


def test_unsent_job_is_cancelled_without_a_wait(deaf: Replicated) -> None:
    assert add.using(queue=QUEUE).prepare(LATER, 1).cancel(durable=SHORT)


# Where it is asked for


def test_queue_task_and_call_inherit(deaf: Replicated) -> None:
    @delayed_task(name="durable-by-task", queue=QUEUE, durable=SHORT)
    def by_task() -> None: ...

    with pytest.raises(NotDurable):
        by_task.schedule(LATER)
    with pytest.raises(NotDurable):
        add.using(queue="waits").schedule(LATER, 1)
    by_task.using(durable=False).schedule(LATER)
    add.using(queue="waits", durable=False).schedule(LATER, 1)


def test_durable_does_not_travel(pair: Replicated) -> None:
    assert add.using(queue=QUEUE, durable=1).prepare(5, 1).options is None


@pytest.mark.django_db(transaction=True)
def test_commit_hook_waits(deaf: Replicated) -> None:
    from django.db import transaction

    with pytest.raises(NotDurable) as caught, transaction.atomic():
        job = schedule(add.using(queue=QUEUE, durable=SHORT, on_commit=True), LATER, 1)

    assert caught.value.job is job
    assert job.refresh() is State.SCHEDULED


@pytest.mark.parametrize("is_async", [False, True])
def test_batch_waits_and_its_callback_can_start(
    deaf: Replicated, is_async: bool
) -> None:
    task = anything.using(queue=QUEUE, durable=SHORT)
    batch = Batch(task.prepare(0))
    jobs = [task.prepare(LATER, n) for n in range(3)]

    with pytest.raises(NotDurable) as caught:
        made(batch.aschedule(jobs) if is_async else batch.schedule(jobs))

    assert batch.left() == len(caught.value.jobs) == 3
    for job in jobs:
        job.cancel()
    assert batch.callback.refresh() in (State.SCHEDULED, State.DUE)


def test_batch_whose_callback_alone_is_durable_waits_for_it(deaf: Replicated) -> None:
    batch = Batch(anything.using(queue=QUEUE, durable=SHORT).prepare(0))

    with pytest.raises(NotDurable) as caught:
        batch.schedule([anything.using(queue=QUEUE).prepare(LATER)])

    assert caught.value.job is batch.callback


@pytest.mark.parametrize("durable", [1, "disk", Durable(replicas=2, disk=True)])
def test_tests_without_a_server_take_it(settings: Any, durable: Any) -> None:
    settings.DELAYQ = {"QUEUES": {QUEUE: {}}}
    task = add.using(queue=QUEUE, durable=durable)

    with captured():
        assert schedule(task, LATER, 1).cancel(durable=durable)
        assert len(schedule_many([task.prepare(LATER, 1)])) == 1
    with frozen_queue():
        assert schedule(task, LATER, 1).cancel(durable=durable)
        assert len(schedule_many([task.prepare(LATER, n) for n in range(700)])) == 700


# Disks


def has_waitaof(server: Server) -> bool:
    return server.version >= (7, 2)


def test_disk_of_primary_and_replica_has_the_job(
    private_server: Start, settings: Any, writes: list[bytes]
) -> None:
    pair = Replicated(private_server, 1, appendonly="yes", appendfsync="everysec")
    if not has_waitaof(pair.primary):
        pytest.skip("no WAITAOF before 7.2")
    url = pair.primary.socket_url + PATIENT
    settings.DELAYQ = {"CONNECTION": url, "QUEUES": {QUEUE: {}}}

    schedule(add.using(queue=QUEUE), LATER, 0)
    for replicas in (0, 1):
        durable = Durable(replicas=replicas, disk=True, timeout=25)
        schedule(add.using(queue=QUEUE, durable=durable), LATER, 1)

    assert waits_in(writes, b"WAITAOF") == 2
    assert stored_in(pair.replicas[0]) == 3


def test_server_that_cannot_sync_says_why(private_server: Start, settings: Any) -> None:
    server = private_server()
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {QUEUE: {}}}
    why = "append-only file is off" if has_waitaof(server) else "no WAITAOF"

    with pytest.raises(NotDurable, match=why) as caught:
        schedule(add.using(queue=QUEUE, durable="disk"), LATER, 1)

    assert not caught.value.is_on_disk
    assert get_job(caught.value.job.id).state is State.SCHEDULED


def test_user_that_may_not_wait_is_told(private_server: Start, settings: Any) -> None:
    server = private_server()
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-wait"
        )
    url = f"redis://app:pw@127.0.0.1:{server.port}/0"
    settings.DELAYQ = {"CONNECTION": url, "QUEUES": {QUEUE: {}}}

    with pytest.raises(NotDurable, match=r"ACL SETUSER USER \+wait"):
        schedule(add.using(queue=QUEUE, durable=1), LATER, 1)


def test_wait_ends_before_the_connection_counts_as_dead(
    deaf: Replicated, settings: Any, writes: list[bytes]
) -> None:
    settings.DELAYQ = {
        "CONNECTION": f"{deaf.primary.socket_url}&socket_timeout=3",
        "QUEUES": {QUEUE: {}},
    }
    schedule(add.using(queue=QUEUE), LATER, 1)

    with pytest.raises(NotDurable):
        schedule(add.using(queue=QUEUE, durable=LONG), LATER, 1)

    assert waits_in(writes) == 1


# Failover


def test_no_durable_job_is_lost_with_the_primary(
    own_pair: Replicated, settings: Any
) -> None:
    task = add.using(queue=QUEUE, durable=LONG)
    jobs = [schedule(task, LATER, n) for n in range(50)]

    own_pair.primary.kill()
    promoted = own_pair.promote()
    settings.DELAYQ = {"CONNECTION": promoted.socket_url, "QUEUES": {QUEUE: {}}}

    assert [get_job(job.id).state for job in jobs] == [State.SCHEDULED] * 50


def test_demoted_server_is_not_believed(own_pair: Replicated) -> None:
    """WAIT ends with an error when its server becomes a replica; what that has stored is about to go."""
    task = add.using(queue=QUEUE, durable=LONG)
    errors: list[BaseException] = []

    def sending() -> None:
        try:
            schedule(task, LATER, 1)
        except redis.RedisError as error:
            errors.append(error)

    replica = own_pair.replicas[0]
    replica.suspend()
    thread = threading.Thread(target=sending)
    thread.start()
    with own_pair.primary.client() as client:
        wait_until(
            lambda: client.info("clients")["blocked_clients"],
            description="the call waits",
        )
        client.replicaof("127.0.0.1", str(replica.port))
        thread.join()
    replica.resume()

    assert len(errors) == 1


# Values


@pytest.mark.parametrize(
    "durable", [0, -1, True, 101, 1.5, "disc", "replicas", b"disk", (1,), {}]
)
def test_wrong_value_is_refused(queue: str, durable: Any) -> None:
    with pytest.raises(InvalidTask, match=r"durable=.*give a number of replicas"):
        add.using(queue=queue, durable=durable)
    with pytest.raises(InvalidTask, match=r"durable=.*give a number of replicas"):
        add.using(queue=queue).prepare(5, 1).cancel(durable=durable)
    (problem,) = find_problems({"QUEUES": {"q": {"DURABLE": durable}}})
    assert "DURABLE" in problem.message
    assert "'disk'" in problem.hint


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({}, "waits for nothing"),
        ({"replicas": -1}, "whole number"),
        ({"replicas": True}, "whole number"),
        ({"disk": 1}, "True or False"),
        ({"replicas": 1, "timeout": 0}, "seconds or a timedelta"),
        ({"replicas": 1, "timeout": "5"}, "seconds or a timedelta"),
        ({"replicas": 1, "timeout": timedelta(hours=1)}, "seconds or a timedelta"),
    ],
)
def test_durable_that_cannot_be_is_refused(
    arguments: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(InvalidSettings, match=wanted):
        Durable(**arguments)


@pytest.mark.parametrize(
    ("value", "durable"),
    [
        (2, Durable(replicas=2)),
        ("disk", Durable(disk=True)),
        (SHORT, SHORT),
        (False, None),
        (None, None),
    ],
)
def test_values_of_the_setting(value: Any, durable: Durable | None) -> None:
    settings = read_settings({"QUEUES": {"q": {"DURABLE": value}}})

    assert settings.queues["q"].durable == durable


def test_two_wishes_become_one_that_satisfies_both() -> None:
    both = Durable(replicas=2, timeout=1).with_(Durable(disk=True, timeout=3))

    assert both == Durable(replicas=2, disk=True, timeout=3)
    assert as_durable(1) == Durable(replicas=1)


# Checks


def problems_of(server: Server, durable: Durable) -> list[Any]:
    with server.client() as client:
        found = find_server_problems(client, ["q"], durable={"q": durable})
    return [problem for problem in found if "DURABLE" in problem.message]


def test_check_names_what_the_server_cannot_give(private_server: Start) -> None:
    server = private_server()

    (problem,) = problems_of(server, Durable(replicas=2))
    assert problem.level is Level.WARNING
    assert "Queue 'q' asks for 2 replicas (DURABLE), and 0" in problem.message

    (problem,) = problems_of(server, Durable(disk=True))
    assert problem.level is Level.ERROR
    why = "append-only file is off" if has_waitaof(server) else "no WAITAOF"
    assert why in problem.hint


def test_check_finds_nothing_where_the_server_can(pair: Replicated) -> None:
    assert problems_of(pair.primary, Durable(replicas=1)) == []
