"""Calls to a cluster: each goes to the node of its queue, also while slots move and nodes fail."""

import asyncio
import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import redis
from django.core.management import call_command
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq import (
    BlockingQueue,
    DelayedQueue,
    Durable,
    InvalidSettings,
    MaybeScheduled,
    NotDurable,
    State,
    aschedule,
    aschedule_many,
    clear_limit,
    find_jobs,
    get_job,
    pause,
    paused,
    resume,
    schedule,
    schedule_many,
    set_limit,
)
from django_delayq.conf import get_settings
from django_delayq.display.overview import look
from django_delayq.faults import describe_fault
from django_delayq.features.statistics.api import astatistics_totals, statistics_totals
from django_delayq.health.problems import find_server_problems
from django_delayq.jobs.shard_agreement import forget, serving
from django_delayq.transport import cluster_client as clusters
from django_delayq.transport.call import Call
from django_delayq.transport.clients import Clients, own_clients
from django_delayq.transport.cluster import Cluster
from django_delayq.transport.errors import is_of_node, may_have_run
from django_delayq.transport.exchange import key_of
from django_delayq.transport.recovery import FREE_REDIRECTIONS
from django_delayq.transport.script import load_script
from django_delayq.transport.slots import Slots
from django_delayq.transport.steps import perform
from django_delayq.waiting.channel import ChannelListener
from django_delayq.waiting.lists import Peeks, wait_for_any
from tests.clusters import TestCluster
from tests.jobs.samples import add, fetch
from tests.management import conftest as of_commands
from tests.management.conftest import Writes
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.servers import Server

pytestmark = pytest.mark.skipif(
    int(redis.__version__.partition(".")[0]) < 6,
    reason="a cluster needs redis-py 6",
)
LATER = 3600


writes = of_commands.writes


@pytest.fixture
def names(cluster: TestCluster, settings: Any) -> Iterator[list[str]]:
    """Queues that the settings know: one on each node."""
    names = [name for (name,) in cluster.names_on_each()]
    _configure(settings, cluster, names)
    yield names
    cluster.clear(names)


def _configure(settings: Any, cluster: TestCluster, names: list[str]) -> None:
    settings.DELAYQ = {
        "CONNECTION": cluster.url,
        "QUEUES": {"default": {}, **{name: {} for name in names}},
    }


@pytest.fixture
def moving(
    cluster: TestCluster, names: list[str]
) -> Iterator[tuple[str, Server, Server]]:
    """A queue whose slot is on its way, from one node to another; afterwards it is back."""
    name = names[0]
    source, target = cluster.nodes[0], cluster.nodes[1]
    schedule(add.using(queue=name), LATER, 1)
    cluster.begin_move(key_slot(name.encode()), source, target)
    yield name, source, target
    slot = key_slot(name.encode())
    while cluster.move_keys(slot, source, target):
        pass
    cluster.end_move(slot, target)
    cluster.move(slot, target, source)


def _calls_of(node: Server) -> int:
    told = node.client().info("commandstats")
    return sum(
        told.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("evalsha", "eval")
    )


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("EVALSHA", "sha", 2, "{q}:1", "{q}:2", "x"), "{q}:1"),
        (("EVAL", "return 1", 0, "x"), None),
        (("HGET", "h", "f"), "h"),
        (("BLMOVE", "q", "q", "LEFT", "LEFT", "1"), "q"),
        (("TIME",), None),
        (("CONFIG GET", "maxmemory"), None),
        (("PUBSUB NUMSUB", "channel"), None),
        (("LLEN", b"\xff"), b"\xff"),
    ],
)
def test_a_command_goes_where_its_first_key_is(command: Any, key: Any) -> None:
    assert key_of(command) == key


def test_each_job_lies_on_the_node_of_its_queue(
    cluster: TestCluster, names: list[str]
) -> None:
    jobs = [schedule(add.using(queue=name), LATER, 1) for name in names]

    for i, name in enumerate(names):
        node = cluster.nodes[i].client()
        assert node.zcard(f"redisson_delay_queue_timeout:{{{name}}}") == 1
    assert [get_job(job.id).state for job in jobs] == ["scheduled"] * 3
    assert all(job.cancel() for job in jobs)


def test_many_jobs_of_all_nodes_go_in_one_stream_and_come_back_in_order(
    names: list[str],
) -> None:
    made = [add.using(queue=names[i % 3]).prepare(LATER, i) for i in range(300)]

    jobs = schedule_many(made)

    assert jobs == made
    assert [find_jobs(queue=name).count() for name in names] == [100] * 3
    assert find_jobs().count() == 300


def test_an_offer_after_a_node_has_closed_the_connection_is_stored(
    cluster: TestCluster, names: list[str]
) -> None:
    with BlockingQueue(names[0]) as queue:
        queue.offer("a")
        cluster.holder_of(names[0]).client().client_kill_filter(_type="normal")

        queue.offer("b")

        assert len(queue) == 2


def test_threads_that_wait_for_a_cluster_that_is_away_share_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, is_asking, may_answer = [], threading.Event(), threading.Event()

    def find() -> Any:
        asked.append(1)
        is_asking.set()
        assert may_answer.wait(60)
        raise RedisClusterException("nobody answers")

    slots, errors = Slots(find), []

    def ask() -> None:
        with pytest.raises(RedisConnectionError, match="nobody answers") as told:
            slots.holder("q")
        errors.append(told.value)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    threads[0].start()
    assert is_asking.wait(60)
    waiting = slots._lock
    entered = threading.Semaphore(0)

    class Lock:
        def __enter__(self) -> None:
            entered.release()
            waiting.acquire()

        def __exit__(self, *error: object) -> None:
            waiting.release()

    monkeypatch.setattr(slots, "_lock", Lock())
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert entered.acquire(timeout=60)
    may_answer.set()
    for thread in threads:
        thread.join()

    assert len(asked) == 1
    assert len(errors) == 8
    assert not any(may_have_run(error) for error in errors)


def test_scripts_that_a_node_has_never_seen_reach_it_in_the_stream(
    cluster: TestCluster, names: list[str]
) -> None:
    for node in cluster.nodes[: cluster.primaries]:
        node.client().script_flush()

    jobs = schedule_many(
        add.using(queue=name).prepare(LATER, i) for name in names for i in range(3)
    )

    assert len(jobs) == 9


def test_a_stream_that_loses_one_node_leaves_no_reply_unread_at_another(
    cluster: TestCluster, names: list[str]
) -> None:
    """The next calls of this thread would take it for theirs."""
    one, other = (add.using(queue=name) for name in names[:2])
    for task in (one, other):
        # This thread has a connection to each node.
        schedule(task, LATER, 0)

    def jobs() -> Iterator[Any]:
        yield other.prepare(LATER, 1)
        yield one.prepare(LATER, 2)
        # Now the call to the first node is under way.
        yield other.prepare(LATER, 3)
        cluster.nodes[0].client().client_kill_filter(_type="normal", skipme=True)
        for n in range(4, 9):
            yield (other if n % 2 else one).prepare(LATER, n)

    with pytest.raises(MaybeScheduled) as caught:
        schedule_many(jobs())

    assert names[1] in {job.queue for job in caught.value.scheduled}
    for _ in range(3):
        job = schedule(other, 2 * LATER, 9)
        assert job.start_time_ms is not None
        assert job.start_time_ms > (time.time() + 1.5 * LATER) * 1000
        assert get_job(job.id).state == "scheduled"
        assert job.cancel()
    schedule_many(caught.value.unsent)
    assert find_jobs().count() == 2 + 8


def test_a_stream_opens_connections_anew_that_were_closed_while_nobody_used_them(
    cluster: TestCluster, names: list[str]
) -> None:
    """Only the first call goes alone, and is repeated; those to another node are not."""
    tasks = [add.using(queue=name) for name in names]
    for task in tasks:
        schedule(task, LATER, 0)
    for node in cluster.nodes[: cluster.primaries]:
        node.client().client_kill_filter(_type="normal", skipme=True)

    jobs = schedule_many(task.prepare(LATER, n) for n in range(3) for task in tasks)

    assert len(jobs) == 9
    assert find_jobs().count() == 12


def test_calls_made_at_once_bring_their_script_to_each_node(
    cluster: TestCluster, names: list[str]
) -> None:
    def flush() -> None:
        for node in cluster.nodes[: cluster.primaries]:
            node.client().script_flush()

    flush()
    assert list(statistics_totals(names)) == names
    flush()
    assert list(asyncio.run(astatistics_totals(names))) == names


def test_the_event_loop_reaches_all_nodes(names: list[str]) -> None:
    async def main() -> list[int]:
        await aschedule(fetch.using(queue=names[0]), LATER, "x")
        jobs = await aschedule_many(
            fetch.using(queue=name).prepare(LATER, "y") for name in names
        )
        await asyncio.gather(*(job.acancel() for job in jobs[1:]))
        return [await find_jobs(queue=name).acount() for name in names]

    assert asyncio.run(main()) == [2, 0, 0]


def test_the_overview_shows_the_queues_of_all_nodes(names: list[str]) -> None:
    schedule_many(add.using(queue=name).prepare(LATER, 1) for name in names)

    seen = look([get_settings().queue(name) for name in names])

    assert [queue.counts.waiting for queue in seen.queues] == [1, 1, 1]  # type: ignore[union-attr]


def test_more_queues_of_a_node_are_asked_in_the_same_writes(
    cluster: TestCluster, names: list[str], settings: Any, writes: Writes
) -> None:
    more = [name for (_, name) in cluster.names_on_each(2)]
    costs = []
    for configured in (names, [*names, *more]):
        _configure(settings, cluster, configured)
        queues = [get_settings().queue(name) for name in configured]
        acts = (partial(look, queues), lambda: find_jobs().count())
        for act in acts:
            act()  # connects, and brings scripts
        costs.append([writes.during(act) for act in acts])

    assert costs[0] == costs[1]


def test_many_jobs_are_a_write_for_each_queue(names: list[str], writes: Writes) -> None:
    def schedule_them() -> None:
        schedule_many(
            add.using(queue=names[i // 100]).prepare(LATER, i) for i in range(300)
        )

    schedule_them()  # connects, and brings scripts

    assert writes.during(schedule_them) == 3


def test_jobs_move_from_one_server_to_a_cluster_and_back(
    cluster: TestCluster,
    names: list[str],
    settings: Any,
    private_server: Callable[..., Server],
) -> None:
    server = private_server()
    on_cluster, on_server = cluster.url, server.socket_url
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": on_server}
    jobs = schedule_many(add.using(queue=name).prepare(LATER, 1) for name in names)

    for source, target in ((on_server, on_cluster), (on_cluster, on_server)):
        settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": target}
        assert find_jobs().count() == 0
        call_command("delayq_import", "--from", source, stdout=io.StringIO())
        assert {get_job(job.id).state for job in jobs} == {State.SCHEDULED}
        assert [find_jobs(queue=name).count() for name in names] == [1, 1, 1]


def test_queue_objects_take_a_cluster_s_url_and_redis_py_s_own_client(
    cluster: TestCluster, names: list[str]
) -> None:
    theirs = cluster.theirs()
    try:
        for connection in (cluster.url, theirs):
            for name in names:
                with (
                    DelayedQueue(name, connection=connection) as delayed,
                    BlockingQueue(name, connection=connection) as blocking,
                ):
                    delayed.offer("x", 0.01)
                    assert blocking.poll(20) == "x"
                    blocking.offer("y")
                    assert blocking.take() == "y"
    finally:
        theirs.close()


def test_an_alias_may_make_redis_py_s_cluster_client(
    cluster: TestCluster,
    names: list[str],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = cluster.theirs()
    monkeypatch.setattr(
        "django_delayq.project_connection.get_redis_connection", lambda alias: theirs
    )
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:1",
        }
    }
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "default"}
    try:
        assert schedule(add.using(queue=names[2]), LATER, 1).cancel()
    finally:
        own_clients.forget()
        theirs.close()


def test_after_a_slot_has_moved_the_table_is_read_again_and_calls_go_to_the_new_node(
    cluster: TestCluster, names: list[str]
) -> None:
    name, (source, target, *_) = names[0], cluster.nodes
    slot = key_slot(name.encode())
    job = schedule(add.using(queue=name), LATER, 1)
    cluster.move(slot, source, target)
    try:
        before = _calls_of(source)

        assert get_job(job.id).state == "scheduled"
        assert schedule(add.using(queue=name), LATER, 2).cancel()
        assert [
            len(
                schedule_many(add.using(queue=name).prepare(LATER, 3) for _ in range(3))
            )
            for _ in range(3)
        ] == [3, 3, 3]

        # What a node redirects it does not count as run.
        assert _calls_of(source) == before
    finally:
        cluster.move(slot, target, source)


def test_a_single_key_that_has_moved_ahead_of_its_slot_is_asked_for_there(
    moving: tuple[str, Server, Server],
) -> None:
    name, source, _ = moving
    with pytest.raises(AskError):
        source.client().execute_command("GET", f"{{{name}}}:absent")

    client = own_clients.of_thread()
    client.set(f"{{{name}}}:absent", "here")

    assert client.get(f"{{{name}}}:absent") == b"here"
    assert client.pipeline(transaction=False).get(f"{{{name}}}:absent").execute() == [
        b"here"
    ]

    async def main() -> Any:
        client = await own_clients.of_loop()
        return await client.get(f"{{{name}}}:absent")

    assert asyncio.run(main()) == b"here"
    client.delete(f"{{{name}}}:absent")


def test_a_call_waits_until_its_slot_has_moved(
    cluster: TestCluster,
    moving: tuple[str, Server, Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However busy the machine is.
    monkeypatch.setattr(clusters, "PATIENCE_S", 120)
    name, source, target = moving
    slot = key_slot(name.encode())
    stored: list[Any] = []
    thread = threading.Thread(
        target=lambda: stored.append(schedule(add.using(queue=name), LATER, 2))
    )
    refusals = _refusals(source, target)
    thread.start()
    # More than redirections are allowed, which 6.2 sends between these.
    wait_until(
        lambda: _refusals(source, target) > refusals + FREE_REDIRECTIONS,
        description="it was refused again and again",
    )

    while cluster.move_keys(slot, source, target):
        pass
    cluster.end_move(slot, target)

    thread.join()
    (job,) = stored
    assert job.created
    assert find_jobs(queue=name).count() == 2


def _refusals(*nodes: Server) -> int:
    count = 0
    for node in nodes:
        with node.client() as client:
            told = client.info("errorstats")
        count += int(told.get("errorstat_TRYAGAIN", {"count": 0})["count"])
    return count


@pytest.mark.parametrize("how", ["one", "many", "async", "count"])
def test_a_slot_that_moves_for_too_long_is_told(
    how: str, moving: tuple[str, Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = moving[0]
    monkeypatch.setattr(clusters, "PATIENCE_S", 0.3)
    own_clients.forget()
    task = add.using(queue=name)
    calls: dict[str, Callable[[], Any]] = {
        "one": lambda: schedule(task, LATER, 1),
        "many": lambda: schedule_many([task.prepare(LATER, 1)]),
        "async": lambda: asyncio.run(aschedule(task, LATER, 1)),
        "count": lambda: find_jobs(queue=name).count(),
    }
    began = time.monotonic()

    with pytest.raises((RedisError, MaybeScheduled)) as caught:
        calls[how]()

    error: BaseException | None = caught.value
    if isinstance(error, MaybeScheduled):
        assert error.unsent
        assert not error.unknown
        error = error.__cause__
    assert isinstance(error, TryAgainError)
    assert not may_have_run(error)
    assert "being moved" in describe_fault(error).what
    assert time.monotonic() - began >= 0.1
    if how in ("one", "async"):
        assert "not stored" in error.__notes__[0]


def test_a_call_that_must_not_be_repeated_follows_a_slot(
    cluster: TestCluster, names: list[str]
) -> None:
    name, (source, target, *_) = names[0], cluster.nodes
    slot = key_slot(name.encode())
    with BlockingQueue(name, connection=cluster.url) as queue:
        queue.offer("a")
        cluster.move(slot, source, target)
        try:
            queue.offer("b")
            assert [queue.take(), queue.take()] == ["a", "b"]
        finally:
            cluster.move(slot, target, source)


#: Longer than a replica needs on any machine.
PATIENT = Durable(replicas=1, timeout=30)


def test_calls_wait_for_the_replicas_of_their_own_node(
    cluster: TestCluster, names: list[str], settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "CONNECTION": f"{cluster.url}/?socket_timeout=60",
    }
    tasks = [add.using(queue=name, durable=PATIENT) for name in names]
    waits = [_waits_of(node) for node in cluster.nodes[:3]]

    jobs = [schedule(task, LATER, 1) for task in tasks]
    jobs += schedule_many(task.prepare(LATER, i) for task in tasks for i in range(3))
    jobs += asyncio.run(
        aschedule_many(task.prepare(LATER, i) for task in tasks for i in range(3))
    )
    assert jobs[0].cancel(durable=PATIENT)

    assert len(jobs) == 21
    assert all(
        _waits_of(node) > before
        for node, before in zip(cluster.nodes, waits, strict=False)
    )


def test_the_first_call_of_many_waits_at_the_node_of_its_own_queue(
    cluster: TestCluster, names: list[str], settings: Any
) -> None:
    """By then it is known that a later one of another queue is to be durable."""
    settings.DELAYQ = {
        **settings.DELAYQ,
        "CONNECTION": f"{cluster.url}/?socket_timeout=60",
    }
    first = add.using(queue=names[0])
    durable = add.using(queue=names[1], durable=PATIENT)
    before = _waits_of(cluster.nodes[0])

    schedule_many([first.prepare(LATER, 1), durable.prepare(LATER, 2)])

    # Twice where the node had not seen the script.
    assert _waits_of(cluster.nodes[0]) > before


def test_jobs_are_not_said_to_be_durable_where_their_slot_has_gone_since(
    cluster: TestCluster, names: list[str]
) -> None:
    """The node that has the slot at the end may be a replica that never had them."""
    name, (source, target, *_) = names[0], cluster.nodes
    slot = key_slot(name.encode())
    task = add.using(queue=name, durable=PATIENT)

    def jobs() -> Iterator[Any]:
        for n in range(3):
            yield task.prepare(LATER, n)
            yield add.using(queue=names[1]).prepare(LATER, n)
        cluster.move(slot, source, target)

    try:
        with pytest.raises(MaybeScheduled, match="the slot moved") as caught:
            schedule_many(jobs())

        assert len(schedule_many(caught.value.unsent)) == 6
        assert find_jobs().count() == 6
    finally:
        cluster.move(slot, target, source)


def _waits_of(node: Server) -> int:
    told = node.client().info("commandstats")
    return int(told.get("cmdstat_wait", {"calls": 0})["calls"])


@pytest.mark.parametrize("how", ["one", "many", "async"])
def test_a_silent_replica_of_one_node_is_told(
    how: str, cluster: TestCluster, names: list[str]
) -> None:
    replica = cluster.nodes[cluster.primaries + 1]
    hasty = Durable(replicas=1, timeout=0.05)
    first, last = (
        add.using(queue=name, durable=hasty if name == names[1] else None)
        for name in names[:2]
    )
    calls: dict[str, Callable[[], Any]] = {
        "one": lambda: schedule(last, LATER, 1),
        "many": lambda: schedule_many(
            [first.prepare(LATER, 1), last.prepare(LATER, 2)]
        ),
        "async": lambda: asyncio.run(aschedule(last, LATER, 1)),
    }
    replica.suspend()
    try:
        with pytest.raises(NotDurable) as caught:
            calls[how]()
    finally:
        replica.resume()
    assert caught.value.acknowledged == 0
    assert find_jobs(queue=names[1]).count() == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_waits_follows_its_slot_and_waits_there(
    is_async: bool, cluster: TestCluster, names: list[str], settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "CONNECTION": f"{cluster.url}/?socket_timeout=60",
    }
    name, (source, target, *_) = names[0], cluster.nodes
    slot = key_slot(name.encode())
    task = add.using(queue=name, durable=PATIENT)
    schedule(task, LATER, 1)
    cluster.move(slot, source, target)
    try:
        before = _waits_of(target)

        job = (
            asyncio.run(aschedule(task, LATER, 2))
            if is_async
            else schedule(task, LATER, 2)
        )

        assert job.created
        assert find_jobs(queue=name).count() == 2
        assert _waits_of(target) > before
    finally:
        cluster.move(slot, target, source)


def test_a_message_published_at_any_node_is_heard(
    cluster: TestCluster, names: list[str]
) -> None:
    heard: list[bytes | None] = []
    listener = ChannelListener(Clients.of(cluster.url).shared())
    try:
        listener.subscribe("cluster-test", heard.append)
        wait_until(lambda: heard == [None], description="it is subscribed")
        for i, node in enumerate(cluster.nodes[: cluster.primaries]):
            node.client().publish("cluster-test", str(i))

        wait_until(
            lambda: sorted(filter(None, heard)) == [b"0", b"1", b"2"],
            description="all were heard",
        )
    finally:
        listener.stop()


def test_subscribers_of_all_nodes_are_counted(
    cluster: TestCluster, names: list[str]
) -> None:
    opened = [
        node.client().pubsub(ignore_subscribe_messages=True)
        for node in cluster.nodes[: cluster.primaries]
    ]
    for each in opened:
        each.subscribe("cluster-count")
        each.get_message(timeout=5)
    try:
        assert own_clients.of_thread().pubsub_numsub("cluster-count") == [
            (b"cluster-count", 3)
        ]
    finally:
        for each in opened:
            each.close()


def test_a_wait_for_a_list_follows_its_slot(
    cluster: TestCluster, names: list[str]
) -> None:
    name, (source, target, *_) = names[0], cluster.nodes
    slot = key_slot(name.encode())
    client = Clients.of(cluster.url).shared()
    peeks = Peeks()
    wait_for_any(client, peeks, [name], 20)
    cluster.move(slot, source, target)
    try:
        # Its connection leads to the old node, which says so.
        wait_for_any(client, peeks, [name], 20)
        target.client().rpush(name, "x")
        began = time.monotonic()
        wait_for_any(client, peeks, [name], 10_000)
        assert time.monotonic() - began < 1.5
    finally:
        peeks.close()
        target.client().delete(name)
        cluster.move(slot, target, source)


def _replace_when_it_waits(node: Server, replica: Server) -> None:
    """Kill a node once a client waits for its replica, which hangs until then."""
    try:
        with node.client() as client:
            wait_until(
                lambda: client.info("clients")["blocked_clients"],
                description="the call waits for the replica",
            )
        node.kill(signal.SIGKILL)
    finally:
        replica.resume()


def _with_shards(
    private_cluster: Callable[..., TestCluster], settings: Any, lost: str
) -> tuple[Server, str]:
    """Start a cluster with a queue of two shards. Of their keys and the bare name's, only `lost` is on the node returned."""
    cluster = private_cluster(replicas=0)
    down = cluster.nodes[0]
    name = next(
        name
        for name in map("q{}".format, range(1_000))
        if [
            part
            for part in ("{}:0", "{}:1", "{}")
            if cluster.holder_of(part.format(name)) is down
        ]
        == [lost]
    )
    _configure(settings, cluster, [])
    settings.DELAYQ["QUEUES"][name] = {"SHARDS": 2}
    return down, name


class TestFailures:
    """Clusters of these tests' own, with nodes that fail."""

    def test_with_a_third_of_the_cluster_down_the_rest_is_served(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        cluster = private_cluster(replicas=0)
        names = [name for (name,) in cluster.names_on_each()]
        _configure(settings, cluster, names)
        schedule_many(add.using(queue=name).prepare(LATER, 1) for name in names)

        cluster.nodes[0].kill(signal.SIGKILL)

        for name in names[1:]:
            assert schedule(add.using(queue=name), LATER, 2).created
        with pytest.raises(RedisConnectionError) as caught:
            schedule(add.using(queue=names[0]), LATER, 2)
        assert is_of_node(caught.value)
        assert f":{cluster.nodes[0].port}" in str(caught.value)
        own_clients.forget()
        # Somebody who comes new finds the cluster through the nodes that are up.
        assert schedule(add.using(queue=names[1]), LATER, 2).created
        seen = look([get_settings().queue(name) for name in names])
        assert isinstance(seen.queues[0].counts, RedisConnectionError)
        assert [queue.counts.waiting for queue in seen.queues[1:]] == [3, 2]  # type: ignore[union-attr]
        told = io.StringIO()
        with pytest.raises(SystemExit, match="1"):
            call_command("delayq_status", stdout=told)
        rows = [line.split() for line in told.getvalue().splitlines()]
        counted = [row[1] for row in rows if row[:1] in [[name] for name in names]]
        assert counted[:3] == ["?", "3", "2"]

    def test_what_concerns_all_shards_is_done_where_a_node_answers_and_the_rest_told(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        down, name = _with_shards(private_cluster, settings, "{}:0")
        down.kill(signal.SIGKILL)

        for change in (
            lambda: pause(name),
            lambda: set_limit(name, concurrency=4),
            lambda: clear_limit(name),
            lambda: resume(name),
        ):
            with pytest.raises(RedisConnectionError) as caught:
                change()
            (note,) = caught.value.__notes__
            assert f"{name}:0" in note.partition(" may be unchanged")[0]
            if change.__code__.co_names[0] == "pause":
                assert [each.queue for each in paused(f"{name}:1")] == [f"{name}:1"]
        assert paused(f"{name}:1") == []

    def test_shards_are_changed_without_the_node_of_the_bare_name_once_workers_served(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        down, name = _with_shards(private_cluster, settings, "{}")
        shards = get_settings().queues_of(name)
        # Each shard says then how many there are.
        for shard in shards:
            perform(own_clients.of_thread, serving(shard))
        forget()
        down.kill(signal.SIGKILL)

        pause(name)

        assert [[each.queue for each in paused(shard.name)] for shard in shards] == [
            [shard.name] for shard in shards
        ]
        assert resume(name)

    def test_number_of_shards_that_no_node_knows_that_answers_is_not_guessed(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        down, name = _with_shards(private_cluster, settings, "{}")
        down.kill(signal.SIGKILL)

        with pytest.raises(RedisConnectionError) as caught:
            pause(name)

        (note,) = caught.value.__notes__
        assert f"{name}:0" in note.partition(" may be unchanged")[0]
        assert [paused(f"{name}:{number}") for number in range(2)] == [[], []]

    def test_subscribers_are_counted_at_the_nodes_that_answer(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        cluster = private_cluster(replicas=0)
        client = Clients.of(cluster.url).of_thread()
        pubsub = cluster.nodes[1].client().pubsub()
        pubsub.subscribe("news")
        wait_until(
            lambda: client.pubsub_numsub("news") == [(b"news", 1)],
            description="the node has it",
        )

        cluster.nodes[0].kill(signal.SIGKILL)

        assert client.pubsub_numsub("news") == [(b"news", 1)]
        for node in cluster.nodes[1:]:
            node.kill(signal.SIGKILL)
        with pytest.raises(RedisConnectionError):
            client.pubsub_numsub("news")
        pubsub.close()

    def test_a_silent_node_is_waited_for_once_by_a_client_that_must_go_on(
        self,
        private_cluster: Callable[..., TestCluster],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        cluster = private_cluster(replicas=0)
        name, other = (name for (name,) in islice(cluster.names_on_each(), 2))
        client = Clients.of(cluster.url).make(socket_timeout=1)
        assert isinstance(client, clusters.ClusterClient)
        client.silent_times = 1_000_000
        for each in (name, other):
            assert client.get(each) is None
        node = cluster.nodes[0]
        asked: list[int] = []
        converse = clusters.converse

        def note(client: Any, commands: Any, **how: Any) -> Any:
            asked.append(client.connection_pool.connection_kwargs["port"])
            return converse(client, commands, **how)

        monkeypatch.setattr(clusters, "converse", note)
        node.suspend()
        try:
            for _ in range(3):
                with pytest.raises(RedisTimeoutError) as caught:
                    client.get(name)
                assert is_of_node(caught.value)
            assert asked == [node.port]
            assert isinstance(
                client.exchange([("GET", name), ("GET", other)])[0], RedisTimeoutError
            )
            assert client.get(other) is None
            assert len(client.of_nodes()) == cluster.primaries - 1
        finally:
            node.resume()
        later_ms = clusters.monotonic_ms() + 2_000_000_000
        monkeypatch.setattr(clusters, "monotonic_ms", lambda: later_ms)
        nodes = client.of_nodes()
        assert len(nodes) == cluster.primaries
        client.lose(nodes[0], RedisTimeoutError())
        assert len(client.of_nodes()) == cluster.primaries - 1
        later_ms *= 2
        assert client.get(name) is None
        client.close()

    def test_a_call_to_a_node_that_hangs_is_made_anew_once_its_replica_has_taken_over(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        cluster = private_cluster()
        ((name,), *_) = cluster.names_on_each()
        _configure(settings, cluster, [name])
        # Nothing but the look at the other nodes can end the wait.
        settings.DELAYQ["CONNECTION"] = f"{cluster.url}/?socket_timeout=600"
        task = add.using(queue=name, durable=PATIENT)
        schedule(task, LATER, 1)
        node, replica = cluster.nodes[0], cluster.nodes[cluster.primaries]
        node.suspend()
        try:
            replica.client().execute_command("CLUSTER", "FAILOVER", "TAKEOVER")

            assert schedule(add.using(queue=name), LATER, 2).created
            assert find_jobs(queue=name).count() == 2
        finally:
            node.resume()

    def test_a_table_that_nobody_could_be_asked_for_stays_doubtful(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        cluster = private_cluster(primaries=1, replicas=0)
        theirs = cluster.theirs()
        slots = Cluster.of(theirs).slots()
        slots.holder("x")
        cluster.stop()

        slots.doubt()
        slots._read_ms = 0.0
        slots.refresh()

        assert slots.is_doubtful
        theirs.close()

    def test_nodes_that_were_replaced_are_no_primaries(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        cluster = private_cluster()
        clients = Clients.of(cluster.url)
        client = clients.of_thread()
        assert isinstance(client, clusters.ClusterClient)
        slots = client._pools.slots
        before, changes = slots.primaries(), clients.changes
        replica = cluster.nodes[cluster.primaries]
        replica.client().execute_command("CLUSTER", "FAILOVER")

        def after() -> list[Any]:
            slots.doubt()
            slots.refresh()
            return slots.primaries()

        wait_until(lambda: after() != before, description="the table says so")
        assert {port for _, port in after()} == {
            node.port for node in (replica, *cluster.nodes[1:3])
        }
        assert clients.changes > changes

    def test_a_cluster_whose_nodes_have_all_moved_is_found_by_its_name(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        old, new = (private_cluster(primaries=1, replicas=0) for _ in range(2))
        named = Proxy(old.nodes[0], on_port=True)
        client = Clients.of(f"redis+cluster://127.0.0.1:{named.port}").of_thread()
        assert client.set("x", 1)
        new.client().set("x", 2)

        named.lead_to(new.nodes[0])
        named.cut()
        old.stop()

        def value() -> bytes | None:
            try:
                return client.get("x")  # type: ignore[return-value]
            except RedisConnectionError:
                return None

        wait_until(lambda: value() == b"2", description="it is found again")
        named.close()

    def test_a_cluster_that_wants_all_its_slots_is_told_to_be_down(
        self,
        private_cluster: Callable[..., TestCluster],
        settings: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        cluster = private_cluster(
            replicas=0, options={"cluster_require_full_coverage": "yes"}
        )
        names = [name for (name,) in cluster.names_on_each()]
        _configure(settings, cluster, names)
        monkeypatch.setattr(clusters, "PATIENCE_S", 0.1)
        assert schedule(add.using(queue=names[1]), LATER, 1).created

        cluster.nodes[0].kill(signal.SIGKILL)
        wait_until(
            lambda: cluster.state_of(cluster.nodes[1]) == "fail",
            description="the others have noticed",
        )

        with pytest.raises(ClusterDownError) as caught:
            schedule(add.using(queue=names[1]), LATER, 2)
        assert not may_have_run(caught.value)
        assert "cluster-require-full-coverage" in describe_fault(caught.value).hint

    def test_after_a_failover_calls_go_to_the_replica(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        cluster = private_cluster()
        names = [name for (name,) in cluster.names_on_each()]
        _configure(settings, cluster, names)
        jobs = schedule_many(add.using(queue=name).prepare(LATER, 1) for name in names)
        cluster.wait_for_replicas()

        cluster.nodes[0].kill(signal.SIGKILL)

        def again() -> bool:
            try:
                return schedule(add.using(queue=names[0]), LATER, 2).created
            except RedisError:
                return False

        wait_until(again, description="the replica has taken over")
        wait_until(
            lambda: cluster.holder_of(names[0]) in cluster.nodes[cluster.primaries :],
            description="the other nodes know",
        )
        assert [get_job(job.id).state for job in jobs] == ["scheduled"] * 3

        async def main() -> int:
            return await find_jobs(queue=names[0]).acount()

        assert asyncio.run(main()) == 2

    @pytest.mark.parametrize("is_async", [False, True])
    def test_no_other_node_answers_for_the_replicas_of_one_that_fails(
        self,
        is_async: bool,
        private_cluster: Callable[..., TestCluster],
        settings: Any,
    ) -> None:
        cluster = private_cluster()
        ((name,), *_) = cluster.names_on_each()
        _configure(settings, cluster, [name])
        settings.DELAYQ = {
            **settings.DELAYQ,
            "CONNECTION": f"{cluster.url}/?socket_timeout=60",
        }
        node, replica = cluster.nodes[0], cluster.nodes[cluster.primaries]
        task = add.using(queue=name, durable=PATIENT)

        def store() -> Any:
            if is_async:
                return asyncio.run(aschedule(task, LATER, 2))
            return schedule(task, LATER, 2)

        # The node knows the script, and so the call runs before it waits.
        schedule(task, LATER, 1)
        replica.suspend()
        killer = threading.Thread(target=_replace_when_it_waits, args=(node, replica))
        killer.start()
        try:
            # Or the replica has taken over, and has no replica.
            with pytest.raises((RedisConnectionError, NotDurable)):
                store()
        finally:
            killer.join()

    def test_wrong_credentials_are_told_as_such(
        self, private_cluster: Callable[..., TestCluster], settings: Any
    ) -> None:
        cluster = private_cluster(primaries=1, replicas=0)
        for node in cluster.nodes:
            node.client().execute_command(
                "ACL", "SETUSER", "someone", "on", ">secret", "~*", "&*", "+@all"
            )
        url = cluster.url.replace("://", "://someone:wrong@")

        with pytest.raises(AuthenticationError):
            Clients.of(url).of_thread().get("x")
        right = Clients.of(cluster.url.replace("://", "://someone:secret@"))
        assert right.of_thread().get("x") is None
        assert "secret" not in repr(right.of_thread().arguments)  # type: ignore[attr-defined]

    def test_an_account_that_may_not_ask_for_slots_is_told_as_such(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        cluster = private_cluster(primaries=1, replicas=0)
        cluster.nodes[0].client().execute_command(
            "ACL",
            "SETUSER",
            "someone",
            "on",
            ">secret",
            "~*",
            "&*",
            "+@all",
            "-cluster",
        )
        url = cluster.url.replace("://", "://someone:secret@")

        with pytest.raises(NoPermissionError, match="cluster"):
            Clients.of(url).of_thread().get("x")

    def test_a_node_that_announces_an_address_out_of_reach_is_named(
        self, private_cluster: Callable[..., TestCluster]
    ) -> None:
        # Nobody listens there.
        elsewhere = {
            "cluster_announce_ip": "127.0.0.2",
            "cluster_announce_port": "1",
        }
        cluster = private_cluster(primaries=1, replicas=0, options=elsewhere)

        with pytest.raises(RedisConnectionError, match=r"127\.0\.0\.2:1\b"):
            Clients.of(cluster.url).of_thread().get("x")


def test_a_server_without_cluster_mode_is_told_as_such(
    private_server: Callable[..., Server],
) -> None:
    server = private_server()
    url = server.url.replace("redis://", "redis+cluster://").removesuffix("/0")

    with pytest.raises(InvalidSettings, match="the server is not a cluster"):
        Clients.of(url).of_thread().get("x")


def test_a_plain_url_of_a_cluster_s_node_is_explained(
    cluster: TestCluster, names: list[str]
) -> None:
    client = cluster.nodes[0].client()
    with pytest.raises(MovedError) as caught:
        client.get(names[1])

    assert "redis+cluster://" in describe_fault(caught.value).hint
    found = find_server_problems(client, [names[1]])
    assert "a node of a cluster" in found[0].message
    assert "redis+cluster://" in found[0].hint


def test_an_old_redis_py_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "__version__", "5.0.1")

    with pytest.raises(InvalidSettings, match=r"needs redis-py 6 .* this is 5\.0\.1"):
        Clients.of("redis+cluster://127.0.0.1:1").of_thread()


def test_nobody_can_be_reached() -> None:
    client = Clients.of("redis+cluster://127.0.0.1:1,127.0.0.1:2").of_thread()

    with pytest.raises(RedisConnectionError) as caught:
        client.get("x")

    assert not may_have_run(caught.value)


def test_an_asyncio_cluster_client_is_refused_with_what_to_give_instead() -> None:
    theirs = redis.asyncio.RedisCluster(host="127.0.0.1", port=1)

    with pytest.raises(InvalidSettings, match=r"redis\.RedisCluster"):
        Clients.of(theirs)  # type: ignore[arg-type]


def test_nodes_that_contradict_each_other_end_a_call(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Clients.of(cluster.url).of_thread()
    script = load_script(("django_delayq.wire",), "offer")
    call: Call[Any] = Call(script, ["q"])
    port = cluster.nodes[0].port

    def redirect(client: Any, commands: Any, **how: Any) -> Any:
        return [MovedError(f"1 127.0.0.1:{port}") for _ in commands]

    monkeypatch.setattr(clusters, "converse", redirect)
    client.patience_s = 0.1

    with pytest.raises(MovedError):
        client.execute_command(*call.command())
