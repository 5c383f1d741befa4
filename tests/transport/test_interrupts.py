"""Interrupts of calls: whatever raises, and wherever it does, no later call gets a reply that is not its own.

A signal handler runs between two steps of the interpreter: where a function begins, and where one in C has returned. A
profile function is called at the same points, so it can raise at each of them in turn.
"""

import asyncio
import gc
import random
import signal
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from django_delayq.transport import connections
from django_delayq.transport import pool as pools
from django_delayq.transport import server as servers
from django_delayq.transport.call import CallPacker
from django_delayq.transport.clients import Clients
from django_delayq.transport.connections import alent, lent
from django_delayq.transport.line import Line
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import arun, run
from django_delayq.transport.several import run_all, run_stream
from django_delayq.transport.steps import Steps, aperform, perform
from django_delayq.transport.together import together
from django_delayq.waiting.connection import DedicatedConnection
from tests.servers import ExternalServer, Server
from tests.transport.samples import echo

# An interrupt of connect() leaves its socket to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

#: Connections of each pool.
MOST = 6
#: Functions by which a phase is told from the others. The first that fits counts.
PHASES = {
    "connecting": {"connect", "connect_check_health", "_open", "_connect"},
    "reading": {"read_response", "read", "read_until", "_told"},
    "sending": {
        "send_command",
        "send_packed_command",
        "pack_command",
        "pack_commands",
        "pack",
        "flush",
        "_write",
    },
    "borrowing": {"get_connection", "borrow", "_get", "make_connection", "of_thread"},
}
#: Functions and modules without an interrupt. Python itself reports what is raised in the first three, and goes on. An
#: interrupt of `logging` or of an import, both in redis-py's connect, may leave a lock held for the rest of the process.
SPARED = {
    "__del__",
    "_remove",
    "_commit_removals",
    "logging",
    "importlib._bootstrap",
}


class Interrupt(BaseException):
    """Raised in the middle of a call."""


kept: list[BaseException] = []


def phase_of(names: set[str]) -> str:
    return next((phase for phase, own in PHASES.items() if own & names), "between")


def names_of(frame: types.FrameType | None) -> set[str]:
    names = set()
    while frame is not None and frame.f_code.co_name != "interrupted":
        names |= {frame.f_code.co_name, frame.f_globals["__name__"]}
        frame = frame.f_back
    return names


def interrupted(call: Callable[[], object], at: int) -> str | None:
    """Make a call and interrupt it at a point. Return the phase; None: it ended before.

    The last interrupt is kept, with all that its frames hold, as a shell or a debugger does.
    """
    left, phase = at, None
    kept.clear()

    def look(frame: types.FrameType, event: str, arg: object) -> None:
        nonlocal left, phase
        if phase is not None or event not in ("call", "c_return"):
            return
        left -= 1
        if left < 0 and not (names := names_of(frame)) & SPARED:
            phase = phase_of(names)
            raise Interrupt

    sys.setprofile(look)
    try:
        call()
    except Interrupt as error:
        sys.setprofile(None)
        kept.append(error)
    finally:
        sys.setprofile(None)
    return phase


class Asker:
    """Makes calls in every way that there is. Each asks for something that nobody else asks for."""

    def __init__(self, server: Server) -> None:
        # A database, and a name: more to say in the handshake.
        url = f"{server.url}/1?client_name=interrupted&max_connections={MOST}"
        self.server = servers.Server.at(url)
        self.clients = Clients(lambda: self.server)
        # With redis-py's own packer, a signal handler that raises while hiredis writes a number crashes the process.
        self.given = redis.Redis.from_url(
            url.replace(f"&max_connections={MOST}", ""), command_packer=CallPacker()
        )
        self.line = Line(self.clients.shared())
        self.dedicated = DedicatedConnection(self.clients.shared(), deadline_s=10)
        self._asked = 0
        #: By name: makes a call, and returns what was asked for and what came.
        self.ways: dict[str, Callable[[], tuple[Any, Any]]] = {
            way.__name__: way
            for way in (
                self.own,
                self.own_new,
                self.pooled,
                self.foreign,
                self.many,
                self.once,
                self.command,
                self.client,
                self.pipeline,
                self.at_once,
                self.in_stream,
                self.in_stream_elsewhere,
                self.on_line,
                self.alone,
            )
        }

    def id(self) -> str:
        self._asked += 1
        return f"id-{self._asked}"

    def own(self) -> tuple[Any, Any]:
        return (one := self.id()), run(self.clients.of_thread(), echo(one))

    def own_new(self) -> tuple[Any, Any]:
        vars(self.clients._get().of_threads).clear()
        return self.own()

    def pooled(self) -> tuple[Any, Any]:
        return (one := self.id()), run(self.clients.shared(), echo(one))

    def foreign(self) -> tuple[Any, Any]:
        return (one := self.id()), run(self.given, echo(one))

    def many(self) -> tuple[Any, Any]:
        ids = [self.id() for _ in range(3)]
        return ids, run_all(self.clients.of_thread(), [echo(one) for one in ids])

    def once(self) -> tuple[Any, Any]:
        return (one := self.id()), Once(echo(one)).do(self.clients.shared())

    def command(self) -> tuple[Any, Any]:
        one = self.id()
        return one, run(self.clients.of_thread(), Command(("ECHO", one), bytes.decode))

    def client(self) -> tuple[Any, Any]:
        client: Any = self.clients.shared()
        return (one := self.id()), client.echo(one).decode()

    def pipeline(self) -> tuple[Any, Any]:
        ids = [self.id() for _ in range(3)]
        pipeline: Any = self.clients.shared().pipeline(transaction=False)
        for one in ids:
            pipeline.echo(one)
        return ids, [reply.decode() for reply in pipeline.execute()]

    def at_once(self) -> tuple[Any, Any]:
        ids = [self.id() for _ in range(3)]

        def ask(one: str) -> Steps[str]:
            return (yield echo(one))

        operations = together([ask(one) for one in ids])
        return ids, perform(self.clients.of_thread, operations)

    def in_stream(self) -> tuple[Any, Any]:
        ids = [self.id() for _ in range(4)]
        with self.clients.lent() as client:
            return ids, list(run_stream(client, (echo(one) for one in ids)))

    def in_stream_elsewhere(self) -> tuple[Any, Any]:
        """Read each reply of a stream while other calls of the thread go on."""
        ids, came = [self.id() for _ in range(4)], []
        with self.clients.lent() as client:
            stream = run_stream(client, (echo(one) for one in ids))
            for reply in stream:
                came.append(reply)
                other, told = self.own()
                assert told == other
        return ids, came

    def on_line(self) -> tuple[Any, Any]:
        ids = [self.id() for _ in range(3)]
        under_way = [self.line.ask(echo(one)) for one in ids]
        return ids, [each.finish() for each in under_way]

    def alone(self) -> tuple[Any, Any]:
        one = self.id()
        return one, self.dedicated.command("ECHO", one).decode()

    def check(self, way: str) -> None:
        """Call twice: the connection may be one reply behind."""
        for _ in range(2):
            asked, told = self.ways[way]()
            assert told == asked, way

    def disconnect(self) -> None:
        """Have the next call connect."""
        self.line.close()
        self.dedicated.close()
        self.given.connection_pool.disconnect()
        self.clients._get().pool.disconnect()

    def close(self) -> None:
        self.disconnect()
        vars(self.clients._get().of_threads).clear()
        self.clients.close()
        self.given.close()


#: How many interrupts in each phase of a call are enough.
LEAST = 30
#: How many steps of Python lie between two of them, with connections that are closed and that are open.
COLD_STEP, WARM_STEP = 97, 13


def check_is_ours(server: Server | ExternalServer) -> None:
    """Skip on a server with another URL."""
    if isinstance(server, ExternalServer):
        pytest.skip("it has another URL")


@pytest.fixture
def asker(
    server: Server | ExternalServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Asker]:
    check_is_ours(server)
    assert isinstance(server, Server)
    # Python reports an interrupt of a finalizer and goes on. pytest would keep it, with all that its frames hold.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    # No program meets as many interrupts.
    monkeypatch.setattr(pools, "LOOK_MS", 0)
    asker = Asker(server)
    yield asker
    asker.close()
    kept.clear()
    # Now, while warnings of open sockets are ignored.
    gc.collect()


@contextmanager
def all_handed_out(pool: Any) -> Iterator[None]:
    """Take as many connections as the pool may lend, and use each."""
    kept.clear()
    gc.collect()
    taken = [connections._get(pool) for _ in range(MOST)]
    for i, connection in enumerate(taken):
        connection.send_command("ECHO", f"{i}")
        assert connection.read_response() == b"%d" % i
    yield
    for connection in taken:
        pool.release(connection)


def test_interrupted_call_leaves_no_reply_and_no_connection_behind(
    server: Server | ExternalServer,
    asker: Asker,
) -> None:
    check_is_ours(server)
    phases: Counter[str] = Counter()
    begin = 0

    # Each time around it is other points of every way, with connections that are closed and that are open.
    while min(phases[phase] for phase in PHASES) < LEAST:
        for way, call in asker.ways.items():
            for step in (COLD_STEP, WARM_STEP):
                at, phase = begin % step, ""
                while phase is not None:
                    if step == COLD_STEP:
                        asker.disconnect()
                    if (phase := interrupted(call, at)) is not None:
                        phases[phase] += 1
                    asker.check(way)
                    at += step
        begin += 1

    asker.disconnect()
    vars(asker.clients._get().of_threads).clear()
    with all_handed_out(asker.clients.shared().connection_pool):
        pass


def test_signal_handler_that_raises_at_any_moment_mixes_up_no_replies(
    asker: Asker,
) -> None:
    def interrupt(number: int, frame: types.FrameType | None) -> None:
        # The block below, and not what it calls first and last.
        if "interrupted" in names_of_all(frame):
            raise Interrupt

    def interrupted_call(way: str) -> None:
        def interrupted() -> None:
            asker.ways[way]()

        with suppress(Interrupt):
            interrupted()

    handler = signal.signal(signal.SIGALRM, interrupt)
    chance = random.Random(26)
    try:
        for i in range(25 * len(asker.ways)):
            way = chance.choice(list(asker.ways))
            if i % 2:
                asker.disconnect()
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-3))
            interrupted_call(way)
            signal.setitimer(signal.ITIMER_REAL, 0)
            asker.check(way)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


async def test_cancelled_call_leaves_no_reply_and_no_connection_behind(
    server: Server | ExternalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_is_ours(server)
    assert isinstance(server, Server)
    found = servers.Server.at(f"{server.url}/1?max_connections={MOST}")
    client = found.async_client(found.async_pool())
    given = redis.asyncio.Redis.from_url(f"{server.url}/1", max_connections=MOST)
    number = 0

    def next_id() -> str:
        nonlocal number
        number += 1
        return f"id-{number}"

    async def one(of: redis.asyncio.Redis) -> tuple[Any, Any]:
        return (own := next_id()), await arun(of, echo(own))

    async def once() -> tuple[Any, Any]:
        return (own := next_id()), await Once(echo(own)).ado(client)

    async def command() -> tuple[Any, Any]:
        own = next_id()
        return own, await arun(client, Command(("ECHO", own), bytes.decode))

    async def method() -> tuple[Any, Any]:
        return (own := next_id()), (await client.execute_command("ECHO", own)).decode()

    async def at_once() -> tuple[Any, Any]:
        ids = [next_id() for _ in range(3)]

        def ask(own: str) -> Steps[str]:
            return (yield echo(own))

        return ids, await aperform(client, together([ask(own) for own in ids]))

    connecting: list[object] = []
    connect = pools._AsyncWhole.connect

    async def noting(connection: Any) -> None:
        connecting.append(connection)
        try:
            await connect(connection)
        finally:
            connecting.pop()

    monkeypatch.setattr(pools._AsyncWhole, "connect", noting)
    phases: Counter[str] = Counter()
    ways = (lambda: one(client), lambda: one(given), once, command, method, at_once)
    # A task that borrows waits for nothing but the connection to open. From Python 3.12 on, one that sends waits for
    # nothing either, as long as the socket takes what it sends.
    met = ["connecting", "reading"]
    if sys.version_info < (3, 12):
        met.append("sending")
    while min(phases[name] for name in met) < LEAST:
        for way in ways:
            for is_cold in (True, False):
                for turns in range(12):
                    if is_cold:
                        await client.connection_pool.disconnect()
                        await given.connection_pool.disconnect()
                    task = asyncio.ensure_future(way())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    phase = "connecting" if connecting else phase_of(awaited(task))
                    phases[phase] += 1
                    task.cancel()
                    await asyncio.wait([task])
                    for _ in range(2):
                        asked, told = await way()
                        assert told == asked
    for pool in (client.connection_pool, given.connection_pool):
        taken = [await connections._get(pool) for _ in range(MOST)]
        for connection in taken:
            await pool.release(connection)
    await client.aclose(close_connection_pool=True)
    await given.aclose()


@pytest.mark.parametrize("kind", ["ours", "given", "given, blocking"])
def test_connection_that_an_interrupt_left_half_open_is_closed(
    asker: Asker,
    server: Server | ExternalServer,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    client = asker.clients.shared() if kind == "ours" else asker.given
    if kind == "given, blocking":
        blocking = redis.BlockingConnectionPool.from_url(f"{server.url}/1")
        client = redis.Redis(connection_pool=blocking)
    asker.disconnect()
    pool: Any = client.connection_pool
    with monkeypatch.context() as context:
        context.setattr(redis.connection.Connection, "read_response", raise_interrupt)
        with pytest.raises(Interrupt):
            run(client, echo("x"))

    idle = pool.pool.queue if hasattr(pool, "pool") else pool._available_connections
    assert [one._sock for one in idle if one is not None] == [None]
    pool.disconnect()


@pytest.mark.parametrize("is_given", [False, True], ids=["ours", "given"])
async def test_connection_that_a_cancellation_left_half_open_is_closed(
    server: Server | ExternalServer, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    url = f"{server.url}/1"
    found = servers.Server.at(url)
    if is_given:
        client = redis.asyncio.Redis.from_url(url)
    else:
        client = found.async_client(found.async_pool())
    is_reading = asyncio.Event()

    async def read_for_ever(*args: Any, **kwargs: Any) -> None:
        is_reading.set()
        await asyncio.Event().wait()

    # Our own pool does it for those who use it without `aborrow` as well.
    call = arun(client, echo("x")) if is_given else client.ping()
    with monkeypatch.context() as context:
        context.setattr(redis.asyncio.Connection, "read_response", read_for_ever)
        task = asyncio.ensure_future(call)
        await is_reading.wait()
        task.cancel()
        await asyncio.wait([task])

    idle: Any = client.connection_pool._available_connections
    assert [connection.is_connected for connection in idle] == [False]
    await client.aclose(close_connection_pool=True)


def test_second_interrupt_leaves_no_connection_open(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first falls into a read, and the second into the closing that follows."""
    pool: Any = asker.given.connection_pool
    with suppress(Interrupt), lent(pool) as foreign:
        monkeypatch.setattr(
            redis.connection.Connection, "disconnect", close_interrupted
        )
        raise Interrupt
    monkeypatch.undo()
    asker.dedicated.connect()
    dedicated = asker.dedicated._connection
    asker.check("on_line")
    on_line = asker.line._connection
    monkeypatch.setattr(redis.connection.Connection, "disconnect", close_interrupted)
    monkeypatch.setattr(redis.connection.Connection, "read_response", raise_interrupt)
    for way in ("alone", "on_line"):
        with pytest.raises(Interrupt):
            asker.ways[way]()
    ours = asker.server.pool().make_connection()
    with pytest.raises(Interrupt):
        ours.connect()
    monkeypatch.undo()

    assert [one._sock for one in (foreign, dedicated, on_line, ours)] == [None] * 4


async def test_second_cancellation_leaves_no_connection_open(
    server: Server | ExternalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_is_ours(server)
    assert isinstance(server, Server)
    given = redis.asyncio.Redis.from_url(f"{server.url}/1")
    pool: Any = given.connection_pool
    with suppress(asyncio.CancelledError):
        async with alent(pool) as foreign:
            monkeypatch.setattr(redis.asyncio.Connection, "disconnect", close_cancelled)
            raise asyncio.CancelledError
    ours = servers.Server.at(f"{server.url}/1").async_pool().make_connection()
    with monkeypatch.context() as context:
        context.setattr(redis.asyncio.Connection, "read_response", cancel)
        context.setattr(redis.asyncio.Connection, "disconnect", close_cancelled)
        with pytest.raises(asyncio.CancelledError):
            await ours.connect()
    monkeypatch.undo()

    assert not foreign.is_connected
    assert not ours.is_connected
    await given.aclose()


def close_interrupted(connection: Any) -> None:
    """Be interrupted in the place of `disconnect()`; no socket is left to the collector."""
    if connection._sock is not None:
        connection._sock.close()
    raise Interrupt


async def close_cancelled(connection: Any, nowait: bool = False) -> None:
    connection._writer.close()
    raise asyncio.CancelledError


async def cancel(*args: Any, **kwargs: Any) -> None:
    raise asyncio.CancelledError


def raise_interrupt(*args: Any, **kwargs: Any) -> None:
    raise Interrupt


def awaited(task: "asyncio.Future[Any]") -> set[str]:
    """Return the names of the coroutines that wait for one another."""
    names, coroutine = (
        set(),
        task.get_coro() if isinstance(task, asyncio.Task) else None,
    )
    while coroutine is not None:
        names.add(getattr(coroutine, "__name__", ""))
        coroutine = getattr(coroutine, "cr_await", None)
    return names


def names_of_all(frame: types.FrameType | None) -> set[str]:
    """Return the names of all functions and their modules; none where no interrupt falls."""
    names = set()
    while frame is not None:
        names |= {frame.f_code.co_name, frame.f_globals["__name__"]}
        frame = frame.f_back
    return set() if names & SPARED else names
