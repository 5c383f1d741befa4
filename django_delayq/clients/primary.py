"""Connections to the primary that Sentinels name, wherever that moves.

Each connection asks the Sentinels when it opens, and once more when the server has been silent for a moment: a primary
that is suspended, or cut off, closes nothing, and a failover leaves its clients waiting. A server that says that it is a
replica loses the connection as well.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError

from django_delayq.calls.errors import Demoted, mark_unsent, unhidden
from django_delayq.clients.sentinels import (
    Primary,
    PrimaryNotFound,
    Sentinels,
    SentinelsRefuse,
    note_connected,
)

#: After so much silence of the server, and again and again, the Sentinels are asked whether it is still the primary, s.
#: No attempt to connect takes longer before it asks them anew.
ATTENTION_S = 0.25
#: The longest pause between attempts to reach a server that may move at any moment, ms.
LONGEST_PAUSE_MS = 200.0


def led_by(client: Any) -> Sentinels | None:
    """Return the Sentinels that lead a client to its server; None: it has its address."""
    pool = getattr(client, "connection_pool", None)
    return None if pool is None else pool.connection_kwargs.get("sentinels")


def pause_ms(client: Any, usual_ms: float) -> float:
    """Return how long to wait for a server that is away. Sentinels, or a cluster, may soon name another one."""
    is_of_cluster = getattr(client, "connection_pool", client) is None
    if led_by(client) is None and not is_of_cluster:
        return usual_ms
    return min(usual_ms, LONGEST_PAUSE_MS)


class AttentiveSocket:
    """A socket that looks around while it waits.

    It behaves like the socket that it wraps, with the time-out of that, but calls ``look`` whenever nothing has come or
    gone for `ATTENTION_S`. What ``look`` raises ends the wait.
    """

    def __init__(self, sock: socket.socket, look: Callable[[], None]) -> None:
        self._wrapped = sock
        self._look = look
        self.settimeout(sock.gettimeout())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def settimeout(self, timeout_s: float | None) -> None:
        self._patience_s = timeout_s
        self._wrapped.settimeout(
            ATTENTION_S if timeout_s is None else min(timeout_s, ATTENTION_S)
        )

    def gettimeout(self) -> float | None:
        return self._patience_s

    def recv(self, *args: Any) -> bytes:
        return self._attend(self._wrapped.recv, *args)  # type: ignore[no-any-return]

    def recv_into(self, *args: Any) -> int:
        return self._attend(self._wrapped.recv_into, *args)  # type: ignore[no-any-return]

    def sendall(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        while left:
            left = left[self._attend(self._wrapped.send, left) :]

    def shut(self) -> None:
        """Make every wait end with an error. Called from any thread."""
        try:
            # Not the method of a TLS socket, which takes away what another thread is using.
            socket.socket.shutdown(self._wrapped, socket.SHUT_RDWR)
        except OSError:
            # It is closed already.
            return

    def _attend(self, act: Callable[..., Any], *args: Any) -> Any:
        begun_s: float | None = None
        while True:
            try:
                return act(*args)
            except TimeoutError:
                begun_s = begun_s or time.monotonic() - ATTENTION_S
                patience_s = self._patience_s
                waited_s = time.monotonic() - begun_s + ATTENTION_S / 2
                if patience_s is not None and waited_s >= patience_s:
                    raise
                self._look()


class _Slices:
    """The attempts to open one connection, and the time-outs of each. The address is asked for before each of them."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # How long all of them may take; and each wait of the TLS handshake.
        self._patience_s: float | None = connection.socket_connect_timeout
        self._reading_s: float | None = connection.socket_timeout
        self._begun_s = time.monotonic()
        self._next_s = ATTENTION_S
        self._is_open = False

    def __iter__(self) -> Iterator[None]:
        while not self._is_open:
            yield

    def __enter__(self) -> None:
        self._connection.socket_connect_timeout = _least(self._patience_s, self._next_s)
        self._connection.socket_timeout = _least(self._reading_s, self._next_s)
        # A later one has the time that a far server needs.
        self._next_s = 2 * ATTENTION_S

    def __exit__(self, kind: type | None, error: object, trace: object) -> bool:
        self._connection.socket_connect_timeout = self._patience_s
        self._connection.socket_timeout = self._reading_s
        self._is_open = kind is None
        if kind is None or not issubclass(kind, TimeoutError):
            return False
        return (
            self._patience_s is None
            or time.monotonic() - self._begun_s < self._patience_s
        )


def _least(patience_s: float | None, slice_s: float) -> float:
    return slice_s if patience_s is None else min(patience_s, slice_s)


class _LedConnection(Connection):
    """Opens at the address that the Sentinels name."""

    def __init__(self, *, sentinels: Sentinels, **arguments: Any) -> None:
        super().__init__(**arguments)  # type: ignore[no-untyped-call]
        self.sentinels = sentinels
        self.primary: Primary | None = None
        self._is_checked = False
        # Whether the last wait ended because the primary is elsewhere now.
        self._has_moved = False

    def connect(self) -> None:
        self._until_it_stays(super().connect)

    # redis-py 6 and later call this one, and from `connect`.
    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        connect = super().connect_check_health
        self._until_it_stays(lambda: connect(*args, **kwargs))

    def _until_it_stays(self, connect: Callable[[], None]) -> None:
        """Connect anew if the primary moves while the old one is still to greet us."""
        while True:
            self._has_moved = False
            try:
                connect()
                return
            except RedisConnectionError:
                if not self._has_moved:
                    raise

    def _connect(self) -> Any:
        slices = _Slices(self)
        for _ in slices:
            primary = self.sentinels.find()
            self.host, self.port = primary.host, primary.port
            with slices:
                sock = super()._connect()  # type: ignore[no-untyped-call]
        self.primary, self._is_checked = primary, False
        note_connected(self)
        sock.settimeout(self.socket_timeout)
        return AttentiveSocket(sock, self._look)

    def _look(self) -> None:
        try:
            primary = self.sentinels.find()
        except RedisError:
            # Nobody knows better than we do. The wait goes on until its own time-out.
            return
        if self.primary is not None and primary.replaces(self.primary):
            self._has_moved = True
            raise ConnectionResetError(_moved(self.sentinels, primary))

    def shut(self) -> None:
        self._has_moved = True
        sock = self._sock
        if sock is not None:
            sock.shut()

    def on_connect(self) -> None:
        super().on_connect()  # type: ignore[no-untyped-call]
        self._check_role()

    # redis-py 6 and later call this one, and from `on_connect`.
    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        super().on_connect_check_health(*args, **kwargs)
        self._check_role()

    def _check_role(self) -> None:
        if self._is_checked:
            return
        self._is_checked = True
        self.send_command("ROLE", check_health=False)  # type: ignore[no-untyped-call]
        try:
            reply = self.read_response()
        except NoPermissionError:
            # Writes will tell.
            return
        _check_role(self.sentinels, self.primary, reply)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as error:
            demoted = _demoted(self.sentinels, error)
            if demoted is None:
                raise
            self.disconnect()  # type: ignore[no-untyped-call]
            raise demoted from error


class PrimaryConnection(_LedConnection):
    """A connection to the primary."""


class PrimarySSLConnection(_LedConnection, SSLConnection):
    """A connection to the primary, with TLS."""


class _AsyncLedConnection(AsyncConnection):
    """`_LedConnection` for asyncio."""

    def __init__(self, *, sentinels: Sentinels, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.sentinels = sentinels
        self.primary: Primary | None = None
        self._is_checked = False
        self._has_moved = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _connect(self) -> None:
        slices = _Slices(self)
        for _ in slices:
            primary = await self.sentinels.afind()
            self.host, self.port = primary.host, primary.port
            with slices:
                await super()._connect()  # type: ignore[no-untyped-call]
        self.primary, self._is_checked = primary, False
        self._loop = asyncio.get_running_loop()
        note_connected(self)

    async def connect(self) -> None:
        await self._until_it_stays(super().connect)

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        connect = super().connect_check_health
        await self._until_it_stays(lambda: connect(*args, **kwargs))

    async def _until_it_stays(self, connect: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._has_moved = False
            try:
                await connect()
                return
            except RedisConnectionError as error:
                if self._has_moved:
                    continue
                if isinstance(error.__cause__, PrimaryNotFound | SentinelsRefuse):
                    # redis.asyncio wraps this error, where redis raises it bare.
                    raise error.__cause__ from None
                raise

    @asynccontextmanager
    async def _attention(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        looking: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            ATTENTION_S, lambda: looking.append(loop.create_task(self._look()))
        )
        try:
            yield
        finally:
            timer.cancel()
            for task in looking:
                task.cancel()

    async def _look(self) -> None:
        while True:
            try:
                primary = await self.sentinels.afind()
            except RedisError:
                # As above: the wait goes on until its own time-out.
                primary = None
            if primary and self.primary and primary.replaces(self.primary):
                self.shut()
                return
            await asyncio.sleep(ATTENTION_S)

    def shut(self) -> None:
        self._has_moved = True
        writer = self._writer
        if writer is not None and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(writer.transport.abort)
            except RuntimeError:
                # The loop is closed, and its connections with it.
                return

    async def on_connect(self) -> None:
        await super().on_connect()
        await self._check_role()

    async def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        await super().on_connect_check_health(*args, **kwargs)
        await self._check_role()

    async def _check_role(self) -> None:
        if self._is_checked:
            return
        self._is_checked = True
        await self.send_command("ROLE", check_health=False)
        try:
            reply = await self.read_response()
        except NoPermissionError:
            return
        _check_role(self.sentinels, self.primary, reply)

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        async with self._attention():
            await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            async with self._attention():
                return await super().read_response(*args, **kwargs)
        except ResponseError as error:
            demoted = _demoted(self.sentinels, error)
            if demoted is None:
                raise
            await self.disconnect(nowait=True)
            raise demoted from error


class AsyncPrimaryConnection(_AsyncLedConnection):
    """A connection to the primary, for asyncio."""


class AsyncPrimarySSLConnection(_AsyncLedConnection, AsyncSSLConnection):
    """A connection to the primary, with TLS, for asyncio."""


def _moved(sentinels: Sentinels, primary: Primary) -> str:
    return f"the primary of {sentinels.name!r} is {primary.host}:{primary.port} now"


def _demoted(sentinels: Sentinels, error: ResponseError) -> Demoted | None:
    """Return what to raise for a server that is a replica by now."""
    if not isinstance(unhidden(error), ReadOnlyError):
        return None
    demoted = Demoted(
        f"the server that was the primary of {sentinels.name!r} is a replica now: {error}"
    )
    mark_unsent(demoted)
    return demoted


def _check_role(sentinels: Sentinels, primary: Primary | None, reply: Any) -> None:
    role = reply[0] if isinstance(reply, list) else reply
    if role in (b"master", "master"):
        return
    assert primary is not None
    error = RedisConnectionError(
        f"the Sentinels of {sentinels.name!r} name {primary.host}:{primary.port}, which is a replica, or becomes one"
    )
    mark_unsent(error)
    raise error
