"""An address that leads to another server, as a DNS name and a virtual address do, while connections stay open.

The old server is a replica by then. It refuses writes and closes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ReadOnlyError

from django_delayq.core.durability import Durable, Wait, durably
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.transport.call import Call
from django_delayq.transport.clients import Clients
from django_delayq.transport.connections import borrow
from django_delayq.transport.errors import may_have_run
from django_delayq.transport.line import Line
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import arun, run
from django_delayq.transport.server import Server
from django_delayq.transport.several import run_all, run_stream
from django_delayq.transport.steps import Steps, aperform, perform
from django_delayq.transport.together import together
from django_delayq.waiting.connection import DedicatedConnection
from tests import servers
from tests.replicas import MovingAddress
from tests.transport.samples import script

WRITE: Call[int] = Call(
    script("return redis.call('RPUSH', KEYS[1], ARGV[1])"),
    ("moved",),
    ("x",),
    repeat=None,
)
SET = Command(("SET", "other", "x"))


@pytest.fixture
def address(private_server: Callable[..., servers.Server]) -> Iterator[MovingAddress]:
    address = MovingAddress(private_server)
    yield address
    address.close()


def one() -> Steps[Any]:
    return (yield WRITE)


def durable() -> Steps[Any]:
    return durably(WRITE, Wait(Durable(replicas=1), DeliveryKeys.of("moved")))


def given(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


#: By name, what makes a call of each kind.
KINDS: dict[str, Callable[[Clients, str], Callable[[], Any]]] = {
    "site": lambda clients, url: lambda: run(clients.of_thread(), WRITE),
    "pooled": lambda clients, url: lambda: run(clients.shared(), WRITE),
    "given": lambda clients, url: (lambda client: lambda: run(client, WRITE))(
        given(url)
    ),
    "command": lambda clients, url: lambda: run(clients.shared(), SET),
    "once": lambda clients, url: lambda: Once(WRITE).do(clients.shared()),
    "pipeline": lambda clients, url: (
        lambda: raised(run_all(clients.of_thread(), [WRITE] * 2))
    ),
    "together": lambda clients, url: (
        lambda: raised(perform(clients.of_thread, together([one(), one()])))
    ),
    "durable": lambda clients, url: lambda: perform(clients.of_thread, durable()),
    "line": lambda clients, url: (lambda line: lambda: line.ask(WRITE).finish())(
        Line(clients.make())
    ),
    "transfer": lambda clients, url: (lambda connection: lambda: connection.run(WRITE))(
        DedicatedConnection(clients.shared(), deadline_s=9)
    ),
    "put": lambda clients, url: (lambda queue: lambda: queue.put(1))(
        BlockingQueue("put", connection=url)
    ),
}
ASYNC_KINDS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "call": lambda client: arun(client, WRITE),
    "command": lambda client: arun(client, SET),
    "once": lambda client: Once(WRITE).ado(client),
    "durable": lambda client: aperform(client, durable()),
}


def raised(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


@contextmanager
def calls_of_each_kind(url: str) -> Iterator[dict[str, Callable[[], Any]]]:
    """Make a call of each kind, so that its connection is open, and then return what makes another one."""
    clients = {kind: Clients.of(url) for kind in KINDS}
    calls = {kind: make(clients[kind], url) for kind, make in KINDS.items()}
    for call in calls.values():
        call()
    yield calls
    for each in clients.values():
        each.close()


def test_calls_go_on_with_the_server_that_the_address_leads_to_now(
    address: MovingAddress,
) -> None:
    with calls_of_each_kind(address.url) as calls:
        address.move()

        for call in calls.values():
            call()


def test_calls_leave_a_replica_that_has_lost_its_primary(
    address: MovingAddress,
) -> None:
    with calls_of_each_kind(address.url) as calls:
        address.move()
        address.strand()

        for call in calls.values():
            call()


@pytest.mark.parametrize("is_stranded", [False, True])
def test_calls_of_an_event_loop_go_on(
    address: MovingAddress, is_stranded: bool
) -> None:
    async def main() -> None:
        theirs = [redis.asyncio.Redis.from_url(address.url) for _ in ASYNC_KINDS]
        pools = [Server.at(address.url).async_pool() for _ in ASYNC_KINDS]
        ours = [redis.asyncio.Redis(connection_pool=pool) for pool in pools]
        clients = [*zip(ASYNC_KINDS.values(), theirs, strict=True)]
        clients += zip(ASYNC_KINDS.values(), ours, strict=True)
        for call, client in clients:
            await call(client)
        await asyncio.to_thread(address.move)
        if is_stranded:
            await asyncio.to_thread(address.strand)

        for call, client in clients:
            await call(client)
        for _, client in clients:
            await client.aclose(close_connection_pool=True)

    asyncio.run(main())


def test_idle_connections_of_a_pool_do_not_lead_to_the_old_server_any_more(
    address: MovingAddress,
) -> None:
    """There may be more of them than a call has tries."""
    client = Clients.of(address.url).shared()
    pool = client.connection_pool
    lent = [borrow(pool) for _ in range(9)]
    for connection in lent:
        pool.release(connection)
    run(client, WRITE)

    address.move()

    assert run(client, WRITE) == 2
    pool.disconnect()


def test_calls_of_a_line_go_on_after_one_that_a_replica_refused(
    address: MovingAddress,
) -> None:
    """Those that were under way behind it may have run, for all that the line knows."""
    line = Line(Clients.of(address.url).make())
    line.ask(WRITE).finish()
    address.move()
    under_way = [line.ask(WRITE) for _ in range(3)]

    under_way[0].finish()
    for each in under_way[1:]:
        with pytest.raises(
            redis.ConnectionError, match="closed after the previous call"
        ) as caught:
            each.finish()
        assert may_have_run(caught.value)

    assert line.ask(WRITE).finish() == 3
    line.close()


def test_a_stream_ends_and_the_next_one_goes_on(address: MovingAddress) -> None:
    clients = Clients.of(address.url)
    run(clients.of_thread(), WRITE)
    address.move()

    with clients.lent() as client:
        replies = list(run_stream(client, [WRITE] * 9))
    assert [type(reply) for reply in replies] == [
        ReadOnlyError,
        redis.ConnectionError,
        redis.ConnectionError,
    ]
    assert not may_have_run(replies[0])

    with clients.lent() as client:
        assert list(run_stream(client, [WRITE] * 3)) == [2, 3, 4]
    clients.close()


def test_an_address_that_leads_to_a_replica_is_told_by_the_server_s_error(
    address: MovingAddress,
) -> None:
    with calls_of_each_kind(address.url) as calls:
        address.demote()

        for kind, call in calls.items():
            with pytest.raises(ReadOnlyError) as caught:
                call()
            assert not may_have_run(caught.value), kind
