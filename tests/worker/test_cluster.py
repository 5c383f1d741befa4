"""Workers of a cluster: one line to each node, and a node in trouble that holds up its own queues only."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq import (
    MaybeScheduled,
    State,
    aschedule,
    current_job,
    delayed_task,
    every,
    periodic,
    schedule,
    schedule_many,
)
from django_delayq.conf import get_settings
from django_delayq.core import forward_calls, worker_code
from django_delayq.jobs import registry, shard_agreement
from django_delayq.transport import line
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.line import Lines
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.worker import upkeep
from tests.clusters import TestCluster
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.records import record
from tests.worker.workers import NEVER_MS, counts


@pytest.fixture
def on(
    configure: Any, settings: Any, queue_name: str
) -> Iterator[Callable[[TestCluster], list[str]]]:
    """Point the settings at a cluster, and return the names of three queues, one on each node."""
    used: list[tuple[TestCluster, list[str]]] = []

    def on(cluster: TestCluster) -> list[str]:
        names = [name for (name,) in cluster.names_on_each(prefix=f"{queue_name}-")]
        settings.DELAYQ = {
            "CONNECTION": cluster.url,
            "QUEUES": {"default": {}, **{name: {} for name in names}},
            "WORKER": {"LEASE": 30},
        }
        used.append((cluster, names))
        return names

    yield on
    for cluster, names in used:
        if all(node.is_running for node in cluster.nodes):
            cluster.clear(names)


def test_a_worker_serves_the_queues_of_all_nodes_on_a_line_to_each(
    cluster, on, work, records
):
    names = on(cluster)
    jobs = schedule_many(
        tasks.note.using(queue=name).prepare(0.05 * i, name)
        for name in names
        for i in range(4)
    )

    worker = work(names, cap_ms=NEVER_MS)

    wait_until(lambda: records.count("run") == 12, description="all have run")
    assert sorted(records.jobs("run")) == sorted(job.id for job in jobs)
    lines = worker.loop._line
    assert isinstance(lines, Lines)
    assert len(lines._lines) == 3
    for name in names:
        wait_until(
            lambda name=name: counts(name).counters.get("succeeded", 0) == 4,
            description="the ends are told",
        )


def test_a_schedule_moves_to_a_queue_of_another_node(
    cluster, on, work, records, monkeypatch
):
    before, after, _ = on(cluster)

    def define(queue):
        @periodic(every(1), name="beat", queue=queue, catch_up="all")
        @delayed_task(name="tests.beat")
        def beat():
            record("run", moment=current_job().occurrence.timestamp(), queue=queue)

    define(before)
    old = work([before])
    wait_until(lambda: records.count("run") >= 2, description="two moments")
    old.loop.stop(1.0)
    wait_until(lambda: not old.is_running, description="the worker has ended")
    registry._tasks.clear()
    monkeypatch.setattr(worker_code, "LOADED_MS", worker_code.LOADED_MS + 1_000)
    define(after)
    work([before, after])

    def ran():
        return [(each["moment"], each["queue"]) for each in records.all("run")]

    wait_until(
        lambda: [queue for _, queue in ran()].count(after) >= 2,
        description="two moments on the other node",
    )

    moments = sorted(moment for moment, _ in ran())
    assert moments == [moments[0] + n for n in range(len(moments))]


def test_an_idle_worker_hears_at_once_of_jobs_on_every_node(cluster, on, work, records):
    names = on(cluster)
    worker = work(names, cap_ms=NEVER_MS)
    wait_until(
        lambda: all(queue.is_watched for queue in worker.loop.queues.values()),
        description="it waits",
    )
    for count, name in enumerate(names, 1):
        schedule(tasks.note.using(queue=name), 0, name)
        # Nothing but the message can have woken it.
        wait_until(lambda n=count: records.count("run") == n, description="it has run")


def test_queue_goes_on_while_what_follows_its_jobs_waits_for_a_node_that_hangs(
    private_cluster, on, work, records
):
    cluster = private_cluster(replicas=0)
    source, away, near = on(cluster)
    worker = work([source, near])
    node = cluster.holder_of(away)
    node.suspend()
    try:
        note = tasks.note.using(queue=source)
        jobs = schedule_many(
            note.prepare(0, "first")
            .then(
                tasks.note.using(queue=away).prepare(0, "away"),
                tasks.note.using(queue=near).prepare(0, "near"),
            )
            .on_dead(note.prepare(0, "dead"))
            for _ in range(40)
        )
        # A node that hangs is asked again and again meanwhile.
        wait_until(lambda: records.count("run") == 80, description="what can run has")
        wait_until(
            lambda: counts(source).counters.get("succeeded", 0) == 40,
            description="the ends are told",
        )
        assert all(job.refresh() is State.SUCCEEDED for job in jobs)

        # Whoever takes over finds what is left, and none of the jobs.
        worker.stop()
        worker = work([source])
        keys = get_settings().queue(source).keys
        left = forward_calls.forwards(keys)
        # What the other queue has got is removed a moment after it was stored there.
        wait_until(
            lambda: (
                [each[:2] for each in run(own_clients.of_thread(), left).waiting]
                == [(away, 40)]
            ),
            description="nothing else is kept",
        )
    finally:
        node.resume()

    keys = get_settings().queue(source).keys
    wait_until(
        lambda: not own_clients.of_thread().exists(keys.forwards),
        description="all has been forwarded",
    )
    work([away])
    wait_until(lambda: records.count("run") == 120, description="it runs")
    texts = Counter(line["text"] for line in records.all("run"))
    assert texts == {"first": 40, "near": 40, "away": 40}


def test_jobs_that_are_pushed_to_a_list_wake_a_worker_on_every_node(
    cluster, on, work, records
):
    names = on(cluster)
    worker = work(names, cap_ms=NEVER_MS)
    wait_until(
        lambda: all(queue.is_watched for queue in worker.loop.queues.values()),
        description="it waits",
    )

    for name in names:
        own_clients.of_thread().rpush(name, b"no payload of ours")

    for name in names:
        wait_until(
            lambda name=name: counts(name).held == 1,
            description="it was looked at",
        )


def test_a_node_that_has_forgotten_is_noticed_once(
    cluster, on, work, monkeypatch, caplog
):
    monkeypatch.setattr(upkeep, "ROUND_MS", 50.0)
    name = on(cluster)[1]
    client, control = own_clients.of_thread(), get_settings().queue(name).keys.control

    def wait_for_check_in(*known: bytes) -> bytes:
        def checked_in() -> bytes | None:
            fields = client.hgetall(control).items()
            (said,) = [v for k, v in fields if k.startswith(b"seen:")] or [None]
            return None if said in known else said

        return wait_until(checked_in, description="it has checked in")

    work([name], cap_ms=50)
    first = wait_for_check_in()
    wait_for_check_in(first)
    assert "has forgotten" not in caplog.text

    client.delete(control)

    said = f"queue {name}: its node has forgotten what it took"
    wait_until(lambda: said in caplog.text, description="it is logged")
    wait_for_check_in(wait_for_check_in())
    assert caplog.text.count("has forgotten") == 1


def test_slots_that_move_under_load_neither_lose_nor_double_a_job(
    cluster, on, work, records
):
    names = on(cluster)
    source, target = cluster.nodes[:2]
    slot = key_slot(names[0].encode())
    stored: list[str] = []

    def add() -> None:
        for i in range(150):
            for name in names:
                stored.append(schedule(tasks.note.using(queue=name), 0.01, i).id)

    adding = threading.Thread(target=add)
    work(names, threads=4)
    adding.start()
    moves = 0
    while adding.is_alive() or moves < 2:
        cluster.move(slot, source, target)
        cluster.move(slot, target, source)
        moves += 1
    adding.join()

    assert len(stored) == 450
    wait_until(
        lambda: set(records.jobs("run")) >= set(stored), description="all have run"
    )
    wait_until(
        lambda: sum(counts(name).counters.get("succeeded", 0) for name in names) == 450,
        description="the ends are told",
    )
    assert sorted(records.jobs("run")) == sorted(stored)


def at_work(work: Any, names: list[str], records: Any) -> Any:
    """Return a worker that has run a job of each queue."""
    worker = work(names)
    for name in names:
        schedule(tasks.note.using(queue=name), 0)
    wait_until(
        lambda: records.count("run") == len(names), description="the worker works"
    )
    return worker


def test_while_a_node_is_down_the_queues_of_the_others_are_served(
    private_cluster, on, work, records, caplog
):
    cluster = private_cluster(replicas=0)
    names = on(cluster)
    worker = at_work(work, names, records)

    cluster.nodes[0].kill(signal.SIGKILL)
    wait_until(
        lambda: f"queue {names[0]} cannot be served" in caplog.text,
        description="it says so",
    )
    later = [
        schedule(tasks.note.using(queue=name), 0.05 * i).id
        for i in range(10)
        for name in names[1:]
    ]

    wait_until(
        lambda: set(records.jobs("run")) >= set(later), description="the others go on"
    )
    assert worker.is_running
    assert not any(worker.loop.queues[name].problem for name in names[1:])


def test_a_node_that_hangs_is_not_waited_for_again_and_again(
    private_cluster, on, monkeypatch
):
    cluster = private_cluster(replicas=0)
    names = on(cluster)
    lines = Lines(own_clients.make(socket_timeout=2))
    hanging, other = (lines.of(name) for name in names[:2])
    time = Command(("TIME",))
    monkeypatch.setattr(line, "SILENT_TIMES", 1_000_000)
    first = [hanging.ask(time), other.ask(time)]
    assert all(asked.finish() for asked in first)

    cluster.nodes[0].suspend()
    try:
        with pytest.raises(RedisTimeoutError):
            hanging.ask(time).finish()
        asked = [hanging.ask(time) for _ in range(3)]
        assert all(each.is_told for each in asked), "the line waits once more"
        for each in asked:
            with pytest.raises(RedisTimeoutError) as caught:
                each.finish()
            assert is_of_node(caught.value)
        assert other.ask(time).finish()
    finally:
        cluster.nodes[0].resume()

    monkeypatch.setattr(line, "monotonic_ms", lambda: float("inf"))
    assert lines.of(names[0]).ask(time).finish()
    lines.close()


def test_shards_begin_again_while_the_node_of_the_bare_name_is_down(
    private_cluster, settings, configure, work, records, queue_name
):
    cluster = private_cluster(replicas=0)
    down = cluster.nodes[0]
    name = next(
        name
        for name in (f"{queue_name}-{n}" for n in range(1_000))
        if [
            cluster.holder_of(part) is down for part in (name, f"{name}:0", f"{name}:1")
        ]
        == [True, False, False]
    )
    parts = [f"{name}:0", f"{name}:1"]
    settings.DELAYQ = {
        "CONNECTION": cluster.url,
        "QUEUES": {"default": {}, name: {"SHARDS": 2}},
    }
    worker = work(parts)
    schedule_many(tasks.note.using(queue=part).prepare(0, "before") for part in parts)
    wait_until(lambda: records.count("run") == 2, description="both shards are served")
    worker.stop()

    down.kill(signal.SIGKILL)
    own_clients.forget()
    shard_agreement.forget()
    work(parts)
    schedule_many(tasks.note.using(queue=part).prepare(0, "after") for part in parts)

    wait_until(lambda: records.count("run") == 4, description="they are served again")


def test_job_whose_id_nobody_has_goes_to_a_shard_that_answers(
    private_cluster, settings, configure, queue_name
):
    cluster = private_cluster(replicas=0)
    name, shards = f"{queue_name}-shards", 12
    settings.DELAYQ = {
        "CONNECTION": cluster.url,
        "QUEUES": {"default": {}, name: {"SHARDS": shards}},
    }
    down = cluster.nodes[0]
    lost = {n for n in range(shards) if cluster.holder_of(f"{name}:{n}") is down}
    assert 0 < len(lost) < shards
    task = tasks.note.using(queue=name)
    prepared = [task.prepare(600, "prepared") for _ in range(100)]
    # Every part is known before the node goes.
    schedule_many(task.prepare(600, "before") for _ in range(200))
    down.kill(signal.SIGKILL)
    own_clients.forget()

    jobs = [schedule(task, 600, n) for n in range(40)]
    jobs += [asyncio.run(aschedule(task, 600, n)) for n in range(10)]

    numbers = {int(job.queue.rpartition(":")[2]) for job in jobs}
    assert not numbers & lost
    assert {job.refresh() for job in jobs} == {State.SCHEDULED}
    assert len({job.id for job in jobs}) == 50
    # The ids of these are known.
    with pytest.raises(MaybeScheduled) as told:
        schedule_many(prepared)
    assert any(int(job.queue.rpartition(":")[2]) in lost for job in told.value.unsent)
    # These have to be in that shard.
    for call in (
        lambda n: schedule(tasks.note.using(queue=name, unique=True), 600, n),
        lambda n: schedule(tasks.one_of_a_key.using(queue=name), 600, f"k{n}"),
        lambda n: schedule(task.using(queue=f"{name}:{min(lost)}"), 600, n),
    ):
        with pytest.raises(RedisConnectionError):
            list(map(call, range(100)))


def test_while_a_node_hangs_the_queues_of_the_others_are_served(
    private_cluster, on, work, records, caplog
):
    cluster = private_cluster(replicas=0)
    names = on(cluster)
    worker = at_work(work, names, records)

    cluster.nodes[0].suspend()
    try:
        later = [
            schedule(tasks.note.using(queue=name), 0.05 * i).id
            for i in range(10)
            for name in names[1:]
        ]
        wait_until(
            lambda: set(records.jobs("run")) >= set(later),
            description="the others go on",
        )
        assert not any(worker.loop.queues[name].problem for name in names[1:])
    finally:
        cluster.nodes[0].resume()
    last = schedule(tasks.note.using(queue=names[0]), 0).id
    wait_until(lambda: last in records.jobs("run"), description="it is served again")


def test_after_a_failover_a_worker_goes_on_with_the_replica(
    private_cluster, on, work, records, caplog
):
    cluster = private_cluster()
    names = on(cluster)
    work(names)
    stored = [
        job.id
        for job in schedule_many(
            tasks.note.using(queue=name).prepare(0.5 + 0.02 * i)
            for name in names
            for i in range(50)
        )
    ]
    cluster.wait_for_replicas()

    cluster.nodes[0].kill(signal.SIGKILL)

    def again() -> bool:
        try:
            stored.append(schedule(tasks.note.using(queue=names[0]), 0).id)
        except RedisError:
            return False
        return True

    wait_until(again, description="the replica has taken over")
    # What ran just before the failure, and was not known to the replica yet, runs once more.
    wait_until(
        lambda: set(records.jobs("run")) >= set(stored), description="all have run"
    )
    wait_until(
        lambda: f"queue {names[0]} is served again" in caplog.text,
        description="it says so",
    )


def test_the_leases_of_a_dead_process_are_given_back_on_every_node(
    cluster, on, program, records
):
    names = on(cluster)
    for name in names:
        schedule(tasks.hold.using(queue=name), 0)
    queues = [each for name in names for each in ("--queue", name)]
    worker = program(*queues, "--processes", "1", "--threads", "3")
    wait_until(lambda: records.count("start") == 3, description="all run")

    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)

    wait_until(lambda: records.count("start") == 6, description="all run again")
    worker.wait_for_log("3 leases of a dead process are given back")
    records.let_go()
    for name in names:
        wait_until(
            lambda name=name: counts(name).counters.get("succeeded", 0) == 1,
            description="the ends are told",
        )
