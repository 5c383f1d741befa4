"""Failovers of real Sentinels, seen by each kind of connection.

Time-outs are ten minutes here: what is back after a second or two did not wait for them.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from redis import sentinel
from redis.asyncio import sentinel as asentinel

from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.transport.clients import Clients, own_clients
from django_delayq.transport.errors import Demoted
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import arun, run
from django_delayq.transport.sentinels import PrimaryUnknown, SentinelsRefuse
from django_delayq.transport.switches import stop_listening
from django_delayq.waiting import channel, watch
from django_delayq.waiting.connection import DedicatedConnection
from tests.failovers import InUse, without_threads, write
from tests.sentinels import FAILOVER_S, NAME, Watched
from tests.servers import ExternalServer

PATIENT = "socket_timeout=600&socket_connect_timeout=600"


@pytest.fixture
def clients(watched: Watched) -> Iterator[Clients]:
    clients = Clients.of(f"{watched.url}?{PATIENT}")
    yield clients
    clients.close()


@pytest.fixture
def sentinels(watched: Watched) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in watched.sentinel_ports]


class TestFailover:
    @pytest.fixture(autouse=True)
    def _waits_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have waits notice nothing by themselves."""
        monkeypatch.setattr(channel, "PING_AFTER_MS", 600_000)
        monkeypatch.setattr(channel, "DEADLINE_MS", 600_000)
        monkeypatch.setattr(watch, "WATCH_MS", 600_000)

    @pytest.mark.parametrize("how", ["kill", "suspend"])
    def test_every_kind_of_connection_works_again(
        self, watched: Watched, how: str
    ) -> None:
        check_that_every_kind_works_again(watched, how)

    def test_every_kind_of_connection_works_again_over_tls(
        self, tls_watched: Watched
    ) -> None:
        check_that_every_kind_works_again(tls_watched, "suspend")

    def test_call_of_a_process_that_does_not_listen_notices_a_suspended_primary(
        self, watched: Watched, clients: Clients
    ) -> None:
        stop_listening()
        with without_threads():
            client = clients.of_thread()
            run(client, write("q"))

            watched.fail_over("suspend")
            run(client, write("q"))

    def test_call_under_way_goes_on_with_the_new_primary(
        self, watched: Watched, clients: Clients
    ) -> None:
        client, done = clients.shared(), threading.Event()
        run(client, write("q"))
        old = watched.primary
        old.suspend()

        def call() -> None:
            run(client, write("under way"))
            done.set()

        thread = threading.Thread(target=call)
        thread.start()
        watched.wait_for_switch(old)

        assert done.wait(FAILOVER_S)
        thread.join()
        assert watched.client(watched.primary).get("under way") == b"x"

    async def test_asyncio_call_under_way_goes_on_with_the_new_primary(
        self, watched: Watched
    ) -> None:
        clients = Clients.of(f"{watched.url}?{PATIENT}")
        client = await clients.of_loop()
        await arun(client, write("q"))
        old = watched.primary
        old.suspend()

        call = asyncio.create_task(arun(client, write("asyncio")))
        await asyncio.to_thread(watched.wait_for_switch, old)

        await asyncio.wait_for(call, FAILOVER_S)
        assert watched.client(watched.primary).get("asyncio") == b"x"

    def test_new_connection_does_not_wait_for_a_suspended_primary(
        self, watched: Watched, clients: Clients
    ) -> None:
        """The kernel of a suspended server accepts the connection, and nobody greets."""
        old = watched.primary
        old.suspend()
        done = threading.Event()

        def connect() -> None:
            run(clients.of_thread(), write("q"))
            done.set()

        thread = threading.Thread(target=connect)
        thread.start()

        assert done.wait(FAILOVER_S)
        thread.join()


class TestDemotion:
    """``READONLY`` without a failover: the primary of an open connection becomes a replica."""

    def test_each_call_leaves_a_server_that_is_a_replica_now(
        self, watched: Watched, clients: Clients
    ) -> None:
        old, shared = watched.primary, clients.shared()
        dedicated = DedicatedConnection(shared, deadline_s=60)
        # One of each: a connection that has noticed is of no use to the next.
        ways: list[Callable[[], object]] = [
            lambda: run(clients.of_thread(), write("q")),
            lambda: run(shared, write("q")),
            lambda: Once(write("q")).do(once),
            lambda: run(plain, Command(("SET", "q", "x"))),
        ]
        once, plain = clients.make(), clients.make()
        for way in ways:
            way()
        dedicated.command("SET", "q", "x")

        changes = own_clients.changes
        new = watched.demote_unseen()
        with pytest.raises(Demoted):
            dedicated.command("SET", "q", "x")
        assert dedicated.command("SET", "q", "x") == b"OK"
        for way in ways:
            way()

        # Once by the first refusal, and perhaps once more by the Sentinels.
        assert own_clients.changes > changes
        assert watched.primary is new
        for client in (once, plain, dedicated):
            client.close()
        watched.wait_until_whole()
        assert watched.role(old) == "slave"

    async def test_asyncio_call_that_is_sent_once_is_sent_to_the_new_primary(
        self, watched: Watched
    ) -> None:
        client = await Clients.of(f"{watched.url}?{PATIENT}").of_loop()
        await Once(write("q")).ado(client)
        new = watched.demote_unseen()

        await Once(write("once")).ado(client)

        assert watched.client(new).get("once") == b"x"


class TestNames:
    def test_name_that_nobody_knows_is_an_error_that_says_so(
        self, watched: Watched
    ) -> None:
        clients = Clients.of(watched.url.replace(NAME, "nobody"))

        with pytest.raises(PrimaryUnknown, match="no primary named 'nobody'"):
            clients.of_thread()
        with pytest.raises(PrimaryUnknown):
            run(clients.shared(), write("q"))

    async def test_name_that_nobody_knows_is_the_same_error_for_asyncio(
        self, watched: Watched
    ) -> None:
        client = await Clients.of(watched.url.replace(NAME, "nobody")).of_loop()

        with pytest.raises(PrimaryUnknown, match="no primary named 'nobody'"):
            await arun(client, write("q"))


class TestClientsOfRedisPy:
    def test_sync_client_of_sentinels_makes_both_kinds(
        self, sentinels: list[tuple[str, int]], watched: Watched
    ) -> None:
        manager = sentinel.Sentinel(sentinels)
        client = manager.master_for(NAME)
        queue = BlockingQueue("sync", connection=client)

        queue.put("a")
        assert asyncio.run(queue.apoll()) == "a"

        queue.close()
        client.close()
        for each in manager.sentinels:
            each.close()

    async def test_asyncio_client_of_sentinels_makes_both_kinds(
        self, sentinels: list[tuple[str, int]], watched: Watched
    ) -> None:
        manager = asentinel.Sentinel(sentinels)
        client = manager.master_for(NAME)
        queue = BlockingQueue("async", connection=client)

        await queue.aput("a")
        assert await asyncio.to_thread(queue.poll) == "a"

        queue.close()
        await client.aclose()
        for each in manager.sentinels:
            await each.aclose()


def test_sentinels_and_servers_have_accounts_of_their_own(server_kind: str) -> None:
    if server_kind in (ExternalServer.kind, "redis6"):
        pytest.skip("its Sentinels cannot be told to hurry")
    with Watched(
        server_kind, password="server-secret", sentinel_password="sentinel-secret"
    ) as watched:
        clients = Clients.of(watched.url)
        run(clients.of_thread(), write("q"))
        clients.close()

        swapped = Clients.of(watched.url.replace("=sentinel-secret", "=other"))
        with pytest.raises(SentinelsRefuse, match="do not accept the account") as told:
            run(swapped.shared(), write("q"))
        assert "other" not in str(told.value)

        wrong = Clients.of(watched.url.replace(":server-secret@", ":other@"))
        with pytest.raises(redis.AuthenticationError) as refused:
            run(wrong.shared(), write("q"))
        assert not isinstance(refused.value, SentinelsRefuse)


def check_that_every_kind_works_again(watched: Watched, how: str) -> None:
    old = watched.primary
    old_run = _run_id(watched, old.port)
    with InUse(watched, PATIENT) as in_use:
        try:
            getattr(old, how)()
            switched, port = watched.wait_for_switch(old)
            with in_use.fed(port):
                in_use.wait_until_back(switched)
        finally:
            # Whoever waits for a suspended server could not be stopped.
            watched.heal()

    # What the servers themselves say of it.
    assert _run_id(watched, port) != old_run
    assert watched.primary.port == port
    assert watched.role(old) == "slave"


def _run_id(watched: Watched, port: int) -> str:
    server = next(server for server in watched.servers if server.port == port)
    if not server.is_running:
        return ""
    return str(watched.client(server).info("server")["run_id"])
