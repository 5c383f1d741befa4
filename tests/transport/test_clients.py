import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import redis
import redis.asyncio

from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import InvalidSettings
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.queues.transfer.push import service
from django_delayq.transport import server as servers
from django_delayq.transport.clients import Clients, _of_loops, nowhere, own_clients
from tests.polling import wait_until
from tests.queues.java import make_due
from tests.queues.usage import usage
from tests.servers import Server

LATER = 600


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget where the settings say that the process's own server is, and bring it back."""
    own_clients.forget()
    monkeypatch.setattr(own_clients, "find", nowhere)
    yield
    own_clients.forget()


@pytest.fixture
def default(client: redis.Redis) -> None:
    own_clients.find = lambda: servers.Server.of(client)


class TestOwnClients:
    def test_nothing_to_connect_to_is_an_error_that_says_what_to_do(self) -> None:
        with pytest.raises(InvalidSettings, match="give connection="):
            BlockingQueue("q").poll()
        with pytest.raises(InvalidSettings, match="give connection="):
            asyncio.run(BlockingQueue("q").apoll())

    def test_object_can_be_made_before_there_is_one(self, queue_name: str) -> None:
        queue = DelayedQueue(queue_name)

        with pytest.raises(InvalidSettings):
            queue.offer("x", 0)
        queue.destroy()

    def test_object_that_was_made_before_there_is_one_transfers_with_its_first_call(
        self, client: redis.Redis, queue_name: str
    ) -> None:
        queue = DelayedQueue(queue_name)
        with pytest.raises(InvalidSettings):
            len(queue)
        own_clients.find = lambda: servers.Server.of(client)

        assert len(queue) == 0
        assert usage(service, client, queue_name) == 1
        queue.destroy()

    @pytest.mark.usefixtures("default")
    def test_object_delivers_from_its_creation_on(self, queue_name: str) -> None:
        with DelayedQueue(queue_name, connection=None) as first:
            first.offer("x", 0.05)
        # Nobody transfers now.

        with DelayedQueue(queue_name):
            assert BlockingQueue(queue_name).poll(20) == "x"

    def test_transfer_moves_with_the_settings(
        self, client: redis.Redis, server: Server, queue_name: str
    ) -> None:
        own_clients.find = lambda: servers.Server.of(client)
        queue = DelayedQueue(queue_name)
        other = redis.Redis.from_url(server.url, db=1)
        own_clients.forget()
        own_clients.find = lambda: servers.Server.of(other)

        assert len(queue) == 0

        assert usage(service, client, queue_name) == 0
        assert usage(service, other, queue_name) == 1
        queue.destroy()
        other.close()

    @pytest.mark.usefixtures("default")
    def test_creation_begins_to_transfer_and_destroy_ends_it(
        self, client: redis.Redis, queue_name: str
    ) -> None:
        queue = DelayedQueue(queue_name)
        assert usage(service, client, queue_name) == 1

        queue.offer("x", LATER)
        assert usage(service, client, queue_name) == 1
        assert len(queue) == 1
        assert usage(service, client, queue_name) == 1

        queue.destroy()
        assert usage(service, client, queue_name) == 0

    @pytest.mark.usefixtures("default")
    async def test_async_methods_use_the_async_one(self, queue_name: str) -> None:
        async with DelayedQueue(queue_name) as queue:
            await queue.aoffer("x", 0)
            assert await BlockingQueue(queue_name).apoll(20) == "x"

    def test_destroy_ends_the_transfer_that_was_begun_though_the_default_changed(
        self, client: redis.Redis, server: Server, queue_name: str
    ) -> None:
        own_clients.find = lambda: servers.Server.of(client)
        queue = DelayedQueue(queue_name)
        queue.offer("x", LATER)
        other = redis.Redis.from_url(server.url, db=1)
        own_clients.forget()
        own_clients.find = lambda: servers.Server.of(other)

        queue.destroy()

        assert usage(service, client, queue_name) == 0
        other.close()


def test_client_with_a_single_connection_lends_its_address_only(
    server: Server, queue_name: str
) -> None:
    client = redis.Redis.from_url(server.socket_url, single_connection_client=True)
    # Another thread waits for its reply.
    client.connection.send_command("PING")

    with BlockingQueue(queue_name, connection=client) as queue:
        assert len(queue) == 0

    assert client.connection.read_response() == b"PONG"
    client.close()


class TestAsyncClients:
    def test_one_is_shared_by_all_objects_of_a_loop_and_ends_with_it(
        self, private_server: Callable[..., Server]
    ) -> None:
        client = private_server().client()
        before = len(client.client_list())

        async def use() -> int:
            for _ in range(20):
                await BlockingQueue("q", connection=client).apoll()
            gc.collect()
            return len(client.client_list())

        during = asyncio.run(use())

        assert during == before + 1
        wait_until(
            lambda: len(client.client_list()) == before, description="it is closed"
        )

    def test_each_loop_has_its_own(self, client: redis.Redis, queue_name: str) -> None:
        queue = BlockingQueue(queue_name, connection=client)
        taken: list[Any] = []

        async def put_and_take(value: int) -> None:
            await queue.aput(value)
            taken.append(await queue.atake())

        for value in range(3):
            asyncio.run(put_and_take(value))
        threads = [
            threading.Thread(target=lambda: asyncio.run(put_and_take(4)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert taken == [0, 1, 2, 4, 4, 4]


class TestCluster:
    @pytest.fixture
    def cluster(self, private_server: Callable[..., Server]) -> Iterator[Any]:
        server = private_server(cluster_enabled="yes")
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_until(
            lambda: client.cluster("INFO")["cluster_state"] == "ok",
            description="all slots are served",
        )
        cluster = redis.RedisCluster(host="127.0.0.1", port=server.port)
        yield cluster
        cluster.close()

    def test_both_queues_work_on_a_cluster(self, cluster: redis.RedisCluster) -> None:
        with (
            DelayedQueue("q", connection=cluster) as delayed,
            BlockingQueue("q", connection=cluster) as blocking,
        ):
            for number in range(5):
                delayed.offer(number, LATER)
            assert delayed.read_all() == list(range(5))
            assert delayed.remove(2)

            make_due(cluster, "q")
            assert sorted(blocking.poll(20) for _ in range(4)) == [0, 1, 3, 4]
            assert blocking.poll(0.05) is None
            assert blocking.poll_from_any(0.05, "other", "{q}:2") is None


def test_objects_leave_no_thread_and_no_connection_behind(
    private_server: Callable[..., Server],
) -> None:
    server = private_server()
    client = server.client()
    before, threads = len(client.client_list()), set(threading.enumerate())
    with (
        DelayedQueue("q", connection=server.socket_url) as delayed,
        BlockingQueue("q", connection=server.socket_url) as blocking,
    ):
        delayed.offer("x", 0.01)
        assert blocking.take() == "x"
        assert blocking.poll(0.01) is None

    assert set(threading.enumerate()) <= threads
    wait_until(
        lambda: len(client.client_list()) == before, description="all are closed"
    )
    assert client.exists(DeliveryKeys.of("q").queue.timeout_set) == 0


class TestConnectionOfAThread:
    def test_two_threads_that_make_the_client_at_once_have_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make = servers.Server.pool
        second_makes, first_has_it = threading.Event(), threading.Event()
        waits_for = iter([second_makes, first_has_it])

        def make_in_turn(server: servers.Server) -> redis.ConnectionPool:
            if (event := next(waits_for)) is first_has_it:
                second_makes.set()
            assert event.wait(timeout=60)
            return make(server)

        monkeypatch.setattr(servers.Server, "pool", make_in_turn)
        clients = Clients.of("redis://127.0.0.1:1")
        with ThreadPoolExecutor(2) as threads:
            made = [threads.submit(clients.shared) for _ in range(2)]
            first = next(as_completed(made, timeout=60)).result()
            first_has_it.set()
            assert all(client.result(timeout=60) is first for client in made)
        clients.close()

    def test_a_pool_that_is_made_while_the_server_changes_is_not_kept(self) -> None:
        ports = [1, 2]

        def find() -> servers.Server:
            server = servers.Server.at(f"redis://127.0.0.1:{ports[0]}")
            if len(ports) == 2:
                # Another thread does so.
                del ports[0]
                clients.forget()
            return server

        clients = Clients(find)
        clients.shared()

        pool = clients.shared().connection_pool
        assert pool.connection_kwargs["port"] == 2
        clients.close()

    def test_every_loop_has_another_client_when_the_server_changes(self) -> None:
        clients = Clients(lambda: servers.Server.at("redis://127.0.0.1:1"))
        loops = [asyncio.new_event_loop() for _ in range(3)]
        before = [loop.run_until_complete(clients.of_loop()) for loop in loops]

        clients.forget()

        after = [loop.run_until_complete(clients.of_loop()) for loop in loops]
        assert not {id(one) for one in before} & {id(one) for one in after}
        for loop in loops:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def test_loops_that_come_while_the_server_changes_do_not_disturb(self) -> None:
        added = 0

        class Key:
            """Compared by `forget`, where another thread may have its turn."""

            __hash__ = object.__hash__

            def __eq__(self, other: object) -> bool:
                nonlocal added
                if added < 1000:
                    added += 1
                    _of_loops[loop, f"another {added}"] = _of_loops[loop, clients._key]
                return self is other

        clients = Clients(
            lambda: servers.Server.at("redis://127.0.0.1:1"), key=(key := Key())
        )
        loop = asyncio.new_event_loop()
        loop.run_until_complete(clients.of_loop())

        try:
            clients.forget()
            assert added
            assert (loop, key) not in _of_loops
        finally:
            for place in [place for place in _of_loops if place[0] is loop]:
                del _of_loops[place]
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    @pytest.mark.parametrize("closes_generators", [True, False])
    def test_a_loop_that_has_ended_is_not_kept(self, closes_generators: bool) -> None:
        clients = Clients.of("redis://127.0.0.1:1")
        ended = []
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(clients.of_loop())
            if closes_generators:
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            ended.append(weakref.ref(loop))
        del loop
        # Another that comes makes room.
        asyncio.run(clients.of_loop())

        gc.collect()
        assert [reference() for reference in ended] == [None] * 3
        assert not [place for place in _of_loops if place[0].is_closed()]

    def test_a_connection_that_takes_too_long_is_left_to_the_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = Clients.of("redis://127.0.0.1:1")
        shared = clients.shared()

        def take_too_long(*names: str) -> Any:
            raise redis.TimeoutError("it took too long")

        monkeypatch.setattr(shared.connection_pool, "get_connection", take_too_long)

        assert clients.at_hand() is shared

    def test_each_thread_that_takes_keeps_one_until_it_ends(
        self, private_server: Callable[..., Server]
    ) -> None:
        server = private_server()
        client = server.client()
        before = len(client.client_list())
        has_taken, may_end = threading.Semaphore(0), threading.Event()

        def take() -> None:
            for value in (1, 2, 3):
                queue.offer(value)
                queue.poll()
            has_taken.release()
            may_end.wait()

        with BlockingQueue("q", connection=server.socket_url) as queue:
            threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in threads:
                assert has_taken.acquire(timeout=60)
            # And one in the pool, for what is sent once only, or one each at most.
            assert before + 3 < len(client.client_list()) <= before + 6
            may_end.set()
            for thread in threads:
                thread.join()
            for value in range(20):
                queue.offer(value)
                assert queue.poll() == value
            assert len(client.client_list()) <= before + 6

        wait_until(
            lambda: len(client.client_list()) == before, description="all are closed"
        )

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_forked_child_has_its_own(
        self, server: Server, client: redis.Redis, queue_name: str
    ) -> None:
        with BlockingQueue(queue_name, connection=server.socket_url) as queue:
            queue.offer("first")
            assert queue.poll() == "first"
            client.rpush(queue_name, *[b"%d" % number for number in range(400)])

            child = os.fork()
            if child == 0:
                status = 1
                try:
                    taken = [queue.poll() for _ in range(150)]
                    status = int(None in taken or len(set(taken)) < 150)
                finally:
                    os._exit(status)
            taken = [queue.poll() for _ in range(150)]

            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert len(set(taken)) == 150
            assert len(queue) == 100

    def test_closed_queue_takes_again(self, server: Server, queue_name: str) -> None:
        queue = BlockingQueue(queue_name, connection=server.socket_url)
        for value in range(3):
            queue.offer(value)
            assert queue.poll() == value
            queue.close()

    def test_client_that_was_given_is_used_itself(
        self, server: Server, client: redis.Redis, queue_name: str
    ) -> None:
        pool = redis.BlockingConnectionPool.from_url(
            server.socket_url, max_connections=1, timeout=0.1
        )
        with redis.Redis.from_pool(pool) as narrow:
            queue = BlockingQueue(queue_name, connection=narrow)
            queue.offer("x")
            assert queue.poll() == "x"
            assert narrow.ping()

    def test_server_that_is_away_at_first_is_asked_again(
        self, private_server: Callable[..., Server]
    ) -> None:
        server = private_server()
        with BlockingQueue("q", connection=server.socket_url) as queue:
            server.kill()
            with pytest.raises(redis.exceptions.ConnectionError):
                queue.poll()
            server.start()
            queue.offer("x")

            assert queue.poll() == "x"
