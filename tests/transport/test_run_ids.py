"""Another server at an address, or the same one started again, is noticed by its run id on the first new connection."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.core import checks

from django_delayq.transport import open_connections
from django_delayq.transport.call import Call
from django_delayq.transport.clients import Clients
from django_delayq.transport.connections import alent, borrow, lent
from django_delayq.transport.line import Line
from django_delayq.transport.open_connections import (
    FormerServerError,
    note_answer,
    run_id_in,
    why_unasked,
)
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import arun, run
from django_delayq.transport.server import Server as Place
from django_delayq.waiting.connection import DedicatedConnection
from tests.clusters import TestCluster
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.queues.test_transfer_service import in_fork
from tests.replicas import MovingAddress
from tests.servers import Server
from tests.transport.samples import script

ID = Command(("INFO", "server"), read=run_id_in)
ID_OF = script("return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')")
SET = Command(("SET", "other", "x"))
Start = Callable[..., Server]


@pytest.fixture
def address(private_server: Start) -> Iterator[tuple[Proxy, list[Server]]]:
    """An address, and two servers to which it leads in turn."""
    servers = [private_server(), private_server()]
    proxy = Proxy(servers[0], on_port=True)
    yield proxy, servers
    proxy.close()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, open_connections.__name__)
    return lambda: [
        each.getMessage()
        for each in caplog.records
        if each.name == open_connections.__name__
    ]


def url_of(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def is_shut(connection: Any) -> bool:
    try:
        return bool(connection.can_read(timeout=0))
    except redis.ConnectionError:
        return True


def test_server_that_came_back_empty_is_noticed_before_the_first_call(
    private_server: Start, warnings: Callable[[], list[str]]
) -> None:
    server = private_server()
    clients = Clients.of(server.url)
    run(clients.of_thread(), SET)
    before = clients.changes

    server.restart(keep_data=False)
    with lent(clients.shared().connection_pool):
        assert clients.changes == before + 1

    run(clients.of_thread(), SET)
    assert clients.changes == before + 1
    (warning,) = warnings()
    assert f"another server answers at 127.0.0.1:{server.port}" in warning
    clients.close()


def test_connections_to_the_former_server_are_shut(
    address: tuple[Proxy, list[Server]], warnings: Callable[[], list[str]]
) -> None:
    proxy, (_, new) = address
    pool = Clients.of(url_of(proxy)).shared().connection_pool
    old = [borrow(pool) for _ in range(3)]

    proxy.lead_to(new)
    newest = borrow(pool)

    assert all(map(is_shut, old))
    assert not is_shut(newest)
    (warning,) = warnings()
    assert "closed 3 connections to the former server" in warning
    for connection in (*old, newest):
        pool.release(connection)
    pool.disconnect()


def test_nothing_is_read_again_before_the_connections_to_the_former_server_are_shut() -> (
    None
):
    class Former:
        def shut(self) -> None:
            self.changes_when_shut = open_connections.changes()

    former, before = Former(), open_connections.changes()
    open_connections.note_open(former)

    open_connections.note_another("another server answers", lambda each: each is former)

    assert former.changes_when_shut == before
    assert open_connections.changes() == before + 1


def test_the_next_call_of_each_thread_reaches_the_new_server(
    address: tuple[Proxy, list[Server]],
) -> None:
    proxy, (_, new) = address
    clients, others = Clients.of(url_of(proxy)), Clients.of(url_of(proxy))
    first = run(clients.of_thread(), ID)
    proxy.lead_to(new)

    with lent(others.shared().connection_pool):
        pass

    assert run(clients.of_thread(), ID) != first
    clients.close()
    others.close()


def test_a_call_that_must_not_run_twice_goes_on_with_the_new_server(
    address: tuple[Proxy, list[Server]],
) -> None:
    """Nothing was sent on the connection that was shut."""
    proxy, (_, new) = address
    url = url_of(proxy)
    once = Call(ID_OF, ("x",), repeat=None)
    with asyncio.Runner() as runner:
        clients, others = Clients.of(url), Clients.of(url)
        line = Line(clients.make())
        transfer = DedicatedConnection(clients.shared(), deadline_s=9)

        async def on_loop() -> Any:
            return await arun(await clients.of_loop(), once)

        ways: list[Callable[[], Any]] = [
            lambda: run(clients.of_thread(), once),
            lambda: run(clients.shared(), once),
            lambda: line.ask(once).finish(),
            lambda: transfer.run(once),
            lambda: runner.run(on_loop()),
        ]
        (before,) = {way() for way in ways}
        proxy.lead_to(new)
        with lent(others.shared().connection_pool):
            pass

        (after,) = {way() for way in ways}

        assert after != before
        line.close()
        transfer.close()
        clients.close()
        others.close()


def test_event_loops_notice_it(address: tuple[Proxy, list[Server]]) -> None:
    proxy, (_, new) = address

    async def main() -> None:
        client = Place.at(url_of(proxy)).async_client(
            Place.at(url_of(proxy)).async_pool()
        )
        first = await arun(client, ID)
        before = open_connections.changes()
        proxy.lead_to(new)
        with lent(Clients.of(url_of(proxy)).shared().connection_pool):
            assert open_connections.changes() == before + 1

        assert await arun(client, ID) != first

        proxy.cut()
        await arun(client, ID)
        assert open_connections.changes() == before + 1
        await client.aclose(close_connection_pool=True)

    asyncio.run(main())


def test_new_connection_of_an_event_loop_notices_it(
    address: tuple[Proxy, list[Server]],
) -> None:
    proxy, (_, new) = address
    clients = Clients.of(url_of(proxy))
    pool = clients.shared().connection_pool
    old = borrow(pool)
    proxy.lead_to(new)

    async def main() -> None:
        client = Place.at(url_of(proxy)).async_client(
            Place.at(url_of(proxy)).async_pool()
        )
        await arun(client, ID)
        await client.aclose(close_connection_pool=True)

    asyncio.run(main())

    assert is_shut(old)
    pool.release(old)
    clients.close()


def test_an_address_of_several_servers_does_not_close_connections_for_ever(
    address: tuple[Proxy, list[Server]], warnings: Callable[[], list[str]]
) -> None:
    proxy, servers = address
    pool = Clients.of(url_of(proxy)).shared().connection_pool
    opened = []
    for i in range(8):
        proxy.lead_to(servers[i % 2])
        opened.append(borrow(pool))

    assert list(map(is_shut, opened)) == [True] + [False] * 7
    assert ["in turn" in each for each in warnings()] == [False, True]
    assert "in turn" in why_unasked(opened[0].place)
    pool.disconnect()


def test_connection_that_was_opened_before_the_change_is_not_taken_for_a_return(
    address: tuple[Proxy, list[Server]],
) -> None:
    proxy, (_, new) = address
    pool = Clients.of(url_of(proxy)).shared().connection_pool
    slow = borrow(pool)
    proxy.lead_to(new)
    borrow(pool)

    with pytest.raises(FormerServerError):
        note_answer(slow, slow.run_id)

    assert not why_unasked(slow.place)
    pool.disconnect()


def test_account_that_may_not_ask_does_without(
    private_server: Start, settings: Any
) -> None:
    server = private_server()
    with server.client() as admin:
        admin.execute_command("ACL SETUSER web on >secret ~* &* +@all -info")
    url = server.url.replace("://", "://web:secret@")
    clients = Clients.of(url)

    assert run(clients.of_thread(), SET)
    server.restart()
    with server.client() as admin:
        admin.execute_command("ACL SETUSER web on >secret ~* &* +@all -info")
    before = clients.changes
    assert run(clients.of_thread(), SET)

    assert clients.changes == before
    clients.close()
    settings.DELAYQ = {"CONNECTION": url}
    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)
    (told,) = (each for each in found if each.id == "django_delayq.W010")
    assert f"127.0.0.1:{server.port}" in told.msg
    assert "secret" not in told.msg


def test_server_that_has_no_info_is_done_without(
    private_server: Start, settings: Any
) -> None:
    server = private_server("--rename-command", "INFO", "hidden")
    settings.DELAYQ = {"CONNECTION": server.url}
    clients = Clients.of(server.url)

    async def main() -> None:
        client = Place.at(server.url).async_client(Place.at(server.url).async_pool())
        await arun(client, SET)
        await client.aclose(close_connection_pool=True)

    assert run(clients.of_thread(), SET)
    asyncio.run(main())

    clients.close()
    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)
    (told,) = (each for each in found if each.id == "django_delayq.W010")
    assert "unknown command" in told.msg


@pytest.mark.parametrize("protocol", [2, 3])
def test_each_version_of_the_protocol_tells_the_run_id(
    private_server: Start, protocol: int
) -> None:
    url = f"{private_server().url}?protocol={protocol}"

    async def main() -> str:
        pool = Place.at(url).async_pool()
        async with alent(pool) as connection:
            told: str = connection.run_id
        await pool.disconnect()
        return told

    clients = Clients.of(url)
    with lent(clients.shared().connection_pool) as connection:
        expected = run(clients.of_thread(), ID)
        assert connection.run_id == expected
    assert asyncio.run(main()) == expected
    clients.close()


def test_check_says_nothing_of_a_server_that_tells_its_run_id(
    private_server: Start, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": private_server().url}

    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

    assert "django_delayq.W010" not in {each.id for each in found}


def test_child_notices_it_and_leaves_the_connections_of_its_parent(
    address: tuple[Proxy, list[Server]],
) -> None:
    proxy, (_, new) = address
    clients = Clients.of(url_of(proxy))
    first = run(clients.of_thread(), ID)
    pool = clients.shared().connection_pool
    theirs = borrow(pool)
    proxy.lead_to(new)

    def check() -> bool:
        before = open_connections.changes()
        own = Clients.of(url_of(proxy))
        return (
            run(own.of_thread(), ID) != first
            and open_connections.changes() == before + 1
        )

    assert in_fork(check)

    assert not is_shut(theirs)
    assert run(clients.of_thread(), ID) == first
    pool.release(theirs)
    clients.close()


def test_a_replica_behind_an_address_is_noticed_once(
    private_server: Start, warnings: Callable[[], list[str]]
) -> None:
    address = MovingAddress(private_server)
    clients = Clients.of(address.url)
    run(clients.of_thread(), SET)
    pool = clients.shared().connection_pool
    other = borrow(pool)
    before = clients.changes
    address.demote()

    for _ in range(3):
        with pytest.raises(redis.ReadOnlyError):
            run(clients.of_thread(), SET)

    assert is_shut(other)
    assert clients.changes == before + 1
    (warning,) = warnings()
    assert "is a replica now" in warning
    pool.release(other)
    clients.close()
    address.close()


@pytest.mark.parametrize("kind", ["own", "pooled", "line", "loop"])
def test_each_kind_of_call_notices_a_replica(private_server: Start, kind: str) -> None:
    address = MovingAddress(private_server)
    clients = Clients.of(address.url)
    run(clients.of_thread(), SET)
    line = Line(clients.make())
    line.ask(SET).finish()
    before = clients.changes
    address.demote()

    async def main() -> None:
        await arun(await clients.of_loop(), SET)

    calls: dict[str, Callable[[], Any]] = {
        "own": lambda: run(clients.of_thread(), SET),
        "pooled": lambda: run(clients.shared(), SET),
        "line": lambda: line.ask(SET).finish(),
        "loop": lambda: asyncio.run(main()),
    }
    with pytest.raises(redis.ReadOnlyError):
        calls[kind]()

    assert clients.changes == before + 1
    line.close()
    clients.close()
    address.close()


def test_node_of_a_cluster_that_was_started_again_is_noticed(
    private_cluster: Callable[..., TestCluster],
) -> None:
    cluster = private_cluster(primaries=1, replicas=0)
    clients = Clients.of(cluster.url)
    run(clients.of_thread(), SET)
    before = clients.changes

    cluster.nodes[0].restart()
    wait_until(
        lambda: cluster.state_of(cluster.nodes[0]) == "ok", description="it has slots"
    )
    run(clients.of_thread(), SET)

    assert clients.changes == before + 1
    clients.close()
