"""A planned failover: the old primary answers and takes writes for seconds after the switch, and then forgets them."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_delayq.transport import switches
from django_delayq.transport.call import Call
from django_delayq.transport.clients import Clients, own_clients
from django_delayq.transport.errors import Demoted
from django_delayq.transport.line import Line
from django_delayq.transport.once import Once
from django_delayq.transport.open_connections import shut_socket
from django_delayq.transport.primary import led_by
from django_delayq.transport.run import arun, run
from django_delayq.transport.sentinels import Primary, Sentinels
from django_delayq.transport.several import run_stream
from django_delayq.transport.switches import stop_listening
from tests.failovers import without_threads
from tests.polling import await_until, wait_until
from tests.queues.test_transfer_service import in_fork
from tests.sentinels import FAILOVER_S, PERIODS, Watched
from tests.servers import Server
from tests.transport.samples import script

WRITE = script("return redis.call('SET', KEYS[1], ARGV[1])")
#: A leader demotes the old primary after 40 s.
SELDOM = {**PERIODS, "PUBLISH-PERIOD": 10_000}


@contextmanager
def planned_failover(watched: Watched) -> Iterator[tuple[Server, Server]]:
    """Yield the old and the new primary: the old one does not know yet."""
    try:
        old = watched.hand_on(SELDOM)
        (port,) = wait_until(
            lambda: len(ports := watched.named_ports()) == 1 and ports,
            timeout=FAILOVER_S,
            description="all Sentinels to name the new primary",
        )
        yield old, next(each for each in watched.servers if each.port == port)
    finally:
        watched.set_periods()


@pytest.fixture(params=[True, False], ids=["heard", "without threads"])
def hears(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether a thread listens to the Sentinels."""
    stop_listening()
    if request.param:
        yield True
    else:
        with without_threads():
            yield False
    stop_listening()


@pytest.fixture
def clients(watched: Watched) -> Iterator[Clients]:
    clients = Clients.of(watched.url)
    yield clients
    # A test may have said that no question is due; others use the same Sentinels.
    switches.lead_of(led_by(clients.shared())).forget()
    clients.close()


def write(key: str, value: int) -> Call[Any]:
    return Call(WRITE, (key,), (str(value),))


def once(key: str, value: int) -> Call[Any]:
    return Call(WRITE, (key,), (str(value),), repeat=None)


def test_every_call_leaves_an_old_primary_that_still_takes_writes(
    watched: Watched, clients: Clients, hears: bool
) -> None:
    line = Line(clients.make())

    def stream(value: int) -> None:
        with clients.lent() as client:
            assert list(run_stream(client, [write("stream", value)])) == [b"OK"]

    ways: dict[str, Callable[[int], object]] = {
        "thread": lambda value: run(clients.of_thread(), write("thread", value)),
        "pooled": lambda value: run(clients.shared(), write("pooled", value)),
        "once": lambda value: Once(once("once", value)).do(clients.shared()),
        "line": lambda value: line.ask(write("line", value)).finish(),
        "stream": stream,
    }
    for way in ways.values():
        way(0)
    changes = own_clients.changes

    with planned_failover(watched) as (old, new):
        for key, way in ways.items():
            _check_that_it_moves(watched, new, key, way)

        assert watched.role(old) == "master"
    assert own_clients.changes > changes
    line.close()
    line.client.connection_pool.disconnect()


def test_a_line_looks_by_itself(watched: Watched, clients: Clients) -> None:
    """Where nobody listens, no other call tells it."""
    with without_threads():
        line = Line(clients.make())
        line.ask(write("alone", 0)).finish()

        with planned_failover(watched) as (_, new):
            _check_that_it_moves(
                watched,
                new,
                "alone",
                lambda value: line.ask(write("alone", value)).finish(),
            )
        line.close()
        line.client.connection_pool.disconnect()


def test_idle_connection_leaves_a_suspended_primary_that_goes_on(
    watched: Watched, clients: Clients, hears: bool
) -> None:
    """It takes writes until it is demoted, and its successor never gets them."""

    def way(value: int) -> None:
        run(clients.of_thread(), write("resumed", value))

    way(0)
    watched.set_periods(SELDOM)
    old = watched.primary
    try:
        old.suspend()
        _, port = watched.wait_for_switch(old)
        old.resume()
        new = next(each for each in watched.servers if each.port == port)
        _check_that_it_moves(watched, new, "resumed", way)

        assert watched.role(old) == "master"
    finally:
        watched.set_periods()
        watched.heal()


async def test_every_asyncio_call_leaves_an_old_primary_that_still_takes_writes(
    watched: Watched, clients: Clients, hears: bool
) -> None:
    client = await clients.of_loop()
    loop = asyncio.get_running_loop()

    def on_loop(make: Callable[[int], Any]) -> Callable[[int], Any]:
        return lambda value: asyncio.run_coroutine_threadsafe(
            make(value), loop
        ).result()

    ways = {
        "on loop": on_loop(lambda value: arun(client, write("on loop", value))),
        "once on loop": on_loop(
            lambda value: Once(once("once on loop", value)).ado(client)
        ),
    }
    await arun(client, write("on loop", 0))

    def check() -> None:
        with planned_failover(watched) as (old, new):
            for key, way in ways.items():
                _check_that_it_moves(watched, new, key, way)
            assert watched.role(old) == "master"

    await asyncio.to_thread(check)


def _check_that_it_moves(
    watched: Watched, new: Server, key: str, way: Callable[[int], object]
) -> None:
    """Call until the new primary has what was written, and see that it has all that is written from then on."""
    count = 0

    def is_there() -> bool:
        nonlocal count
        count += 1
        way(count)
        return bool(watched.client(new).get(key) == str(count).encode())

    # The old primary takes writes for 40 s: by itself it sends nobody away before.
    wait_until(is_there, timeout=30, description=f"{key} to write to the new primary")
    assert all(is_there() for _ in range(20))


def test_call_waits_while_a_replica_is_promoted(
    watched: Watched, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "HELD_S", 3600.0)
    run(clients.of_thread(), write("held", 0))
    lead = switches.lead_of(led_by(clients.shared()))
    assert lead.primary is not None
    lead.hold(lead.primary.address)
    call = threading.Thread(target=lambda: run(clients.shared(), write("held", 1)))

    call.start()
    wait_until(lambda: lead._lock.locked(), description="it waits")
    assert watched.client(watched.primary).get("held") == b"0"
    lead.held_until_s = 0.0
    call.join()

    assert watched.client(watched.primary).get("held") == b"1"


async def test_asyncio_call_waits_while_a_replica_is_promoted(
    watched: Watched, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "HELD_S", 3600.0)
    client = await clients.of_loop()
    await arun(client, write("held", 0))
    lead = switches.lead_of(led_by(clients.shared()))
    assert lead.primary is not None
    lead.hold(lead.primary.address)

    call = asyncio.ensure_future(arun(client, write("held", 1)))
    await await_until(lambda: bool(lead._looks), description="it waits")
    assert watched.client(watched.primary).get("held") == b"0"
    lead.held_until_s = 0.0
    await call

    assert watched.client(watched.primary).get("held") == b"1"


def test_calls_are_held_for_the_promotion_of_another_server(
    watched: Watched, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[object] = []
    monkeypatch.setattr(switches.Lead, "hold", lambda lead, place: held.append(place))
    client = clients.of_thread()
    run(client, write("held", 0))
    lead = switches.lead_of(led_by(client))
    wait_until(
        lambda: [ear.is_subscribed for ear in _ears_of(lead)] == [True] * 3,
        description="all Sentinels are heard",
    )

    with planned_failover(watched) as (old, _):
        wait_until(lambda: held, description="the leader is heard")

        assert held[0] == ("127.0.0.1", old.port)


def _ears_of(lead: switches.Lead) -> list[switches._Ear]:
    """Return who listens to its Sentinels. Another test may have left a connection to others."""
    listener = switches._listener
    return [] if listener is None else listener.ears.get(lead, [])


@pytest.mark.parametrize(
    ("said", "is_held"),
    [
        (b"slave 127.0.0.1:3 127.0.0.1 3 @ mine 127.0.0.1 2", True),
        (b"slave 127.0.0.1:3 127.0.0.1 3 @ other 127.0.0.1 2", False),
        # It is late: that one has been replaced already.
        (b"slave 127.0.0.1:3 127.0.0.1 3 @ mine 127.0.0.1 1", False),
        (b"slave 127.0.0.1:3 127.0.0.1 3 @ mine", False),
        # The account may hear of switches alone.
        (b"-NOPERM no permissions to access a channel", False),
    ],
)
def test_only_the_promotion_in_place_of_our_primary_holds_calls(
    said: bytes, is_held: bool
) -> None:
    place = ("127.0.0.1", 26379)
    lead = switches.Lead(Sentinels("mine", (place,), {place: {}}))
    lead.primary = Primary(1, "127.0.0.1", 2)
    ear = switches._Ear(lead, place)
    ear.is_subscribed = True

    ear._take(said)

    assert lead.is_held == is_held


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_listens_from_its_first_call_on(
    watched: Watched, clients: Clients
) -> None:
    run(clients.of_thread(), write("fork", 0))
    lead = switches.lead_of(led_by(clients.shared()))
    wait_until(lambda: lead.is_heard, description="the parent listens")

    def listens() -> bool:
        assert not lead.is_heard
        run(clients.of_thread(), write("fork", 1))
        return bool(wait_until(lambda: lead.is_heard, description="the child listens"))

    with switches._lock:
        # As if the listening thread, or a thread that connects, held it.
        assert in_fork(listens)
    stop_listening()


def test_thread_ends_with_the_last_connection(watched: Watched) -> None:
    clients = Clients.of(watched.url)

    def ends() -> bool:
        run(clients.of_thread(), write("last", 0))
        assert "delayq-sentinel" in _threads()
        clients.forget()
        gc.collect()
        wait_until(lambda: "delayq-sentinel" not in _threads(), description="it ends")
        return True

    # A child has no connection that another test has left.
    assert in_fork(ends)


def test_no_thread_listens_where_it_could_not_wait_for_several_sockets(
    watched: Watched, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is on Windows and with eventlet."""
    stop_listening()
    monkeypatch.setattr(switches, "select", SimpleNamespace())

    assert run(clients.of_thread(), write("alone", 0)) == b"OK"

    assert "delayq-sentinel" not in _threads()


def test_socket_of_another_class_is_shut() -> None:
    class Green:
        def __init__(self) -> None:
            self.told: list[int] = []
            self.shutdown = self.told.append

    sock: Any = Green()

    shut_socket(sock)

    assert sock.told == [socket.SHUT_RDWR]


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_listener_without_a_sentinel_that_answers_costs_a_call_one_question_a_second(
    watched: Watched, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_listening()
    with without_threads():
        client = clients.of_thread()
        run(client, write("silent", 0))
        lead = switches.lead_of(led_by(client))
        asked = []
        monkeypatch.setattr(
            Sentinels, "ask", lambda *args: asked.append(time.monotonic()) or _refuse()
        )
        monkeypatch.setattr(switches, "PATIENCE_S", (60.0,))
        monkeypatch.setattr(switches, "FRESH_S", 3600.0)
        # Those that a listener has just left are left out for a second.
        wait_until(
            lambda: lead.is_stale and len(lead.sentinels.asked()) == 3,
            description="the last answer is old",
        )

        for n in range(3):
            run(client, write("silent", n))

    # Each Sentinel once, by the first call.
    assert len(asked) == 3


def _refuse() -> None:
    raise ConnectionRefusedError


def test_refusal_of_a_server_without_replicas_asks_where_the_primary_is(
    watched: Watched, clients: Clients
) -> None:
    """A process that has looked a moment ago finds the new primary by the refusal itself, once the second is over."""
    refusing = script(
        "return redis.error_reply('NOREPLICAS Not enough good replicas to write.')"
    )
    stop_listening()
    with without_threads():
        client = clients.of_thread()
        run(client, write("few", 0))
        lead = switches.lead_of(led_by(client))
        connection = client.connection
        lead.fresh_until_s = time.monotonic() + 3600

        with pytest.raises(ResponseError, match="NOREPLICAS"):
            run(client, Call(refusing, ("few",)))
        assert client.connection is connection
        assert connection._sock is not None

        # Another thread has heard meanwhile.
        lead.primary = Primary(connection.primary.epoch + 1, "127.0.0.1", 1)
        connection._has_moved = False
        connection.send_command(
            *Call(refusing, ("few",)).full_command(), check_health=False
        )
        with pytest.raises(Demoted):
            connection.read_response()
        assert connection._sock is None
