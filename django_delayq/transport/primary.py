"""Connections to the primary that Sentinels name, wherever that moves.

Each connection asks the Sentinels when it opens. Before each call, and while the server is silent, it makes sure that
this process has news of them from the last second. A server that says that it is a replica loses the connection.
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
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from django_delayq.transport.errors import Demoted, mark_unsent, unhidden
from django_delayq.transport.open_connections import (
    abort,
    note_another,
    note_open,
    shut_socket,
)
from django_delayq.transport.sentinels import (
    Primary,
    PrimaryNotFound,
    Sentinels,
    SentinelsRefuse,
)
from django_delayq.transport.switches import lead_of, listen

#: Seconds of silence after which a connection asks whether its server is still the primary; it asks again as often.
#: Also the time-out of the first attempt to connect. The next attempt asks the Sentinels for the address again.
ATTENTION_S = 0.25
#: How a primary refuses a write that `min-replicas-to-write` forbids. Perhaps it has been replaced.
_NO_REPLICAS = "NOREPLICAS"
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
        self.wrapped = sock
        self._look = look
        self.settimeout(sock.gettimeout())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def settimeout(self, timeout_s: float | None) -> None:
        self._patience_s = timeout_s
        self.wrapped.settimeout(
            ATTENTION_S if timeout_s is None else min(timeout_s, ATTENTION_S)
        )

    def gettimeout(self) -> float | None:
        return self._patience_s

    def recv(self, *args: Any) -> bytes:
        return self._attend(self.wrapped.recv, *args)  # type: ignore[no-any-return]

    def recv_into(self, *args: Any) -> int:
        return self._attend(self.wrapped.recv_into, *args)  # type: ignore[no-any-return]

    def sendall(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        while left:
            left = left[self._attend(self.wrapped.send, left) :]

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
        self.lead = lead_of(sentinels)
        self.primary: Primary | None = None
        self._is_checked = False
        # Whether the primary is elsewhere now.
        self._has_moved = False

    def connect(self) -> None:
        self._until_it_stays(super().connect)

    # redis-py 6 and later call this one, and from `connect`.
    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        connect = super().connect_check_health
        self._until_it_stays(lambda: connect(*args, **kwargs))

    def _until_it_stays(self, connect: Callable[[], None]) -> None:
        """Connect again if the primary moves while the old one is still to greet us."""
        while True:
            try:
                connect()
                return
            except RedisConnectionError:
                if not self._has_moved:
                    raise

    def _connect(self) -> Any:
        self.primary, self._is_checked, self._has_moved = None, False, False
        slices = _Slices(self)
        for _ in slices:
            primary = self.lead.take(self.sentinels.find())
            self.host, self.port = primary.host, primary.port
            with slices:
                sock = super()._connect()  # type: ignore[no-untyped-call]
        self.primary = primary
        note_open(self)
        listen()
        # Whoever noted another primary meanwhile did not find this connection.
        self._has_moved |= self.lead.has_replaced(primary)
        sock.settimeout(self.socket_timeout)
        return AttentiveSocket(sock, self._look)

    def check_health(self) -> None:
        # Called before each call, while no reply is outstanding.
        if self._has_moved or self.lead.is_stale:
            self._leave_if_moved()
        super().check_health()  # type: ignore[no-untyped-call]

    def can_read(self, *args: Any, **kwargs: Any) -> bool:
        # A pool calls this before it lends the connection, and reconnects after an error.
        if self._has_moved or self.lead.is_stale:
            self._leave_if_moved()
        return bool(super().can_read(*args, **kwargs))

    def _leave_if_moved(self) -> None:
        try:
            self._look()
        except ConnectionResetError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise _left(error) from error

    def _look(self) -> None:
        if self.lead.is_stale:
            self.lead.look()
        if self._has_moved or self.lead.has_replaced(self.primary):
            self._has_moved = True
            raise ConnectionResetError(_moved(self.sentinels))

    def shut(self) -> None:
        self._has_moved = True
        if (sock := self._sock) is not None:
            shut_socket(sock.wrapped)

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
            if _NO_REPLICAS in str(error):
                self._leave_if_moved()
            demoted = _demoted(self, error)
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
        self.lead = lead_of(sentinels)
        self.primary: Primary | None = None
        self._is_checked = False
        self._has_moved = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _connect(self) -> None:
        self.primary, self._is_checked, self._has_moved = None, False, False
        slices = _Slices(self)
        for _ in slices:
            primary = self.lead.take(await self.sentinels.afind())
            self.host, self.port = primary.host, primary.port
            with slices:
                await super()._connect()  # type: ignore[no-untyped-call]
        self.primary = primary
        self._loop = asyncio.get_running_loop()
        note_open(self)
        listen()
        self._has_moved |= self.lead.has_replaced(primary)

    async def connect(self) -> None:
        await self._until_it_stays(super().connect)

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        connect = super().connect_check_health
        await self._until_it_stays(lambda: connect(*args, **kwargs))

    async def _until_it_stays(self, connect: Callable[[], Awaitable[None]]) -> None:
        while True:
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
        while not await self._is_elsewhere():
            await asyncio.sleep(ATTENTION_S)
        self.shut()

    async def _is_elsewhere(self) -> bool:
        if self.lead.is_stale:
            await self.lead.alook()
        return self._has_moved or self.lead.has_replaced(self.primary)

    async def check_health(self) -> None:
        if self._has_moved or self.lead.is_stale:
            await self._leave_if_moved()
        await super().check_health()  # type: ignore[no-untyped-call]

    async def _leave_if_moved(self) -> None:
        if await self._is_elsewhere():
            self._has_moved = True
            await self.disconnect(nowait=True)
            raise _left(_moved(self.sentinels))

    def shut(self) -> None:
        self._has_moved = True
        writer = self._writer
        if writer is not None and self._loop is not None:
            abort(self._loop, writer)

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
        if self.lead.is_heard:
            return await super().send_packed_command(*args, **kwargs)
        async with self._attention():
            return await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self.lead.is_heard:
                return await super().read_response(*args, **kwargs)
            async with self._attention():
                return await super().read_response(*args, **kwargs)
        except ResponseError as error:
            if _NO_REPLICAS in str(error):
                await self._leave_if_moved()
            demoted = _demoted(self, error)
            if demoted is None:
                raise
            await self.disconnect(nowait=True)
            raise demoted from error


class AsyncPrimaryConnection(_AsyncLedConnection):
    """A connection to the primary, for asyncio."""


class AsyncPrimarySSLConnection(_AsyncLedConnection, AsyncSSLConnection):
    """A connection to the primary, with TLS, for asyncio."""


def _moved(sentinels: Sentinels) -> str:
    return f"another server is the primary of {sentinels.name!r} now"


def _left(reason: object) -> Demoted:
    """Return what to raise before anything was sent, or after a refusal."""
    left = Demoted(str(reason))
    mark_unsent(left)
    return left


def _demoted(
    connection: "_LedConnection | _AsyncLedConnection", error: ResponseError
) -> Demoted | None:
    """Return what to raise for a server that is a replica by now. Shut the other connections to it as well."""
    if not isinstance(unhidden(error), ReadOnlyError):
        return None
    reason = f"the former primary of {connection.sentinels.name!r} is a replica now"
    if not connection._has_moved:
        lead, primary = connection.lead, connection.primary
        note_another(
            reason,
            lambda each: (
                getattr(each, "lead", None) is lead and each.primary == primary
            ),
        )
    return _left(f"{reason}: {error}")


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
