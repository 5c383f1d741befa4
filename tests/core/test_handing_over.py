"""What is deleted elsewhere is on the server that counts, and on a replica, whoever answers meanwhile."""

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from django_delayq.core import hand_over as handing_over
from django_delayq.core.durability import Durable
from django_delayq.core.hand_over import HandOver, NotHandedOver
from django_delayq.core.keys import DeliveryKeys
from django_delayq.transport.clients import Clients
from django_delayq.transport.primary import led_by
from django_delayq.transport.run import run
from django_delayq.transport.sentinels import Primary
from django_delayq.transport.switches import lead_of, stop_listening
from tests.failovers import without_threads, write
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Replicated
from tests.sentinels import Watched
from tests.servers import Server

Start = Callable[..., Server]
KEYS = DeliveryKeys.of("handed")
KEY = "thing:{handed}"


@pytest.fixture
def pair(private_server: Start) -> Replicated:
    return Replicated(private_server, 1)


@pytest.fixture
def connect() -> Iterator[Callable[[str], "redis.Redis[bytes]"]]:
    """Return a client of a URL."""
    made: list[Clients] = []

    def connect(url: str) -> "redis.Redis[bytes]":
        made.append(Clients.of(url))
        return made[-1].of_thread()

    yield connect
    for clients in made:
        clients.close()


Connect = Callable[[str], "redis.Redis[bytes]"]


def hand_over(client: "redis.Redis[bytes]", **options: object) -> HandOver:
    return HandOver(client, KEYS, **options)  # type: ignore[arg-type]


def has_it(server: Server) -> bool:
    with server.client() as client:
        return bool(client.exists(KEY))


def test_it_waits_for_a_replica_if_there_is_any(
    pair: Replicated, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(pair.primary.socket_url)

    def store() -> str:
        run(client, write(KEY))
        return "stored"

    assert hand_over(client).make(store) == "stored"
    assert has_it(pair.replicas[0])
    pair.replicas[0].suspend()
    monkeypatch.setattr(handing_over, "REPLICA", Durable(replicas=1, timeout=0.05))
    with pytest.raises(NotHandedOver, match="0 of 1 replicas have acknowledged"):
        hand_over(client).make(store)
    assert hand_over(client, waits=False).make(store) == "stored"
    pair.replicas[0].resume()


def test_it_waits_for_a_replica_that_was_there(
    pair: Replicated, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have gone because it is the primary now."""
    monkeypatch.setattr(handing_over, "REPLICA", Durable(replicas=1, timeout=0.05))
    client = connect(pair.primary.socket_url)
    one = hand_over(client)
    one.make(lambda: run(client, write(KEY)))
    pair.promote()
    wait_until(
        lambda: client.info("replication")["connected_slaves"] == 0,
        description="the replica is gone",
    )

    with pytest.raises(NotHandedOver, match="0 of 1 replicas"):
        one.make(lambda: run(client, write(KEY)))


def test_without_replicas_nothing_is_waited_for(
    private_server: Start, connect: Connect
) -> None:
    server = private_server()
    client = connect(server.socket_url)

    hand_over(client).make(lambda: run(client, write(KEY)))

    with server.client() as other:
        assert "cmdstat_wait" not in other.info("commandstats")


def test_account_that_may_not_ask_goes_on_without(
    pair: Replicated, connect: Connect
) -> None:
    with pair.primary.client() as client:
        for name, right in ("blind", "-info"), ("deaf", "-wait"):
            client.execute_command(
                *("ACL", "SETUSER", name, "on", ">pw", "~*", "&*", "+@all", right)
            )

    def make(name: str, **options: object) -> None:
        client = connect(f"redis://{name}:pw@127.0.0.1:{pair.primary.port}/0")
        hand_over(client, **options).make(lambda: run(client, write(KEY)))

    make("blind")
    make("deaf", is_patient=False)
    with pytest.raises(NotHandedOver, match=r"ACL SETUSER USER \+wait"):
        make("deaf")


@pytest.mark.parametrize("moment", ["before", "while it is stored"])
def test_what_a_moved_address_left_behind_is_stored_again(
    private_server: Start, connect: Connect, moment: str
) -> None:
    """The old server goes on answering on the connections that it has."""
    old, new = private_server(), private_server()
    proxy = Proxy(old)
    client = connect(proxy.url)
    one = hand_over(client)
    one.make(lambda: client.ping())
    stored_at: list[int] = []
    if moment == "before":
        proxy.lead_to(new)

    def store() -> int:
        run(client, write(KEY))
        proxy.lead_to(new)
        stored_at.append(client.info("server")["tcp_port"])
        return stored_at[-1]

    try:
        assert one.make(store) == new.port
    finally:
        proxy.close()
    assert stored_at == [old.port, new.port]
    assert has_it(new)


def test_a_server_that_came_back_empty_gets_it_again(
    private_server: Start, connect: Connect
) -> None:
    server = private_server(appendonly="no", save="")
    client = connect(server.socket_url)
    restarts = [1]

    def store() -> None:
        run(client, write(KEY))
        while restarts:
            restarts.pop()
            server.kill()
            server.start()

    hand_over(client).make(store)

    assert has_it(server)


def test_caller_without_patience_is_told_at_once(
    private_server: Start, connect: Connect
) -> None:
    old, new = private_server(), private_server()
    proxy = Proxy(old)
    client = connect(proxy.url)

    with pytest.raises(NotHandedOver, match="another server"):
        hand_over(client, is_patient=False).make(lambda: proxy.lead_to(new))

    # The next one begins with the new server.
    hand_over(client).make(lambda: run(client, write(KEY)))
    proxy.close()
    assert has_it(new)


def test_planned_failover_of_healthy_servers_loses_nothing(
    watched: Watched, connect: Connect
) -> None:
    client = connect(watched.url)
    one = hand_over(client)
    lead = lead_of(led_by(client))
    # Nothing but the check of the hand-over is to find out that there is another primary.
    stop_listening()
    lead.fresh_until_s = time.monotonic() + 3600
    old = watched.primary
    acts: list[int] = []

    def store() -> None:
        if not acts:
            watched.hand_on({"PUBLISH-PERIOD": 600_000})
            assert watched.role(old) == "master"
        run(client, write(KEY))
        acts.append(client.info("server")["tcp_port"])

    try:
        with without_threads():
            one.make(store)
    finally:
        lead.forget()
        watched.set_periods()
        watched.wait_until_whole()

    assert acts[0] == old.port
    assert acts[-1] != old.port
    assert has_it(watched.primary)
    watched.client(watched.primary).delete(KEY)


def test_a_failover_that_has_begun_is_waited_for(
    private_server: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(private_server().socket_url)
    told = [Primary(1, "h", 1, is_moving=True), Primary(1, "h", 1)]
    monkeypatch.setattr(handing_over, "PAUSE_MS", 1)
    one = hand_over(client)
    one.make(lambda: client.ping())
    one._probe.primary = told[0]

    with pytest.raises(NotHandedOver, match="a Sentinel is replacing the primary"):
        one._newest(0.0)
    disconnect = one._probe.disconnect

    def look_again() -> None:
        disconnect()
        one._probe.primary = told.pop(0)

    one._probe.disconnect = look_again

    assert one._newest(float("inf")).address == ("h", 1)
    assert not told
