"""Pools that keep all their connections, wherever an interrupt falls, and that lend none which is half open."""

import asyncio
import functools
import gc
import threading
import time
import weakref
from collections.abc import Hashable
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import ResponseError

from django_delayq.clock import monotonic_ms
from django_delayq.transport.connections import adrop, drop
from django_delayq.transport.errors import Demoted, mark_unsent
from django_delayq.transport.open_connections import (
    FormerServerError,
    abort,
    is_refusal,
    note_answer,
    note_demoted,
    note_open,
    note_refusal,
    run_id_in,
    shut_socket,
    why_unasked,
)

#: A full pool looks for connections that nobody holds this often, ms. To look stops the process: a quarter of a second
#: where it holds 1.5 million objects.
LOOK_MS = 10_000


class Pool(ConnectionPool):
    """A pool of redis-py whose lent connections count only as long as somebody holds them.

    An interrupt may end a caller before it has stored the connection that it got. Nobody can release that one.
    """

    def reset(self) -> None:
        super().reset()
        # redis-py before 5.3 has a plain lock. A connection that is freed meanwhile may come back in the same thread.
        self._lock = threading.RLock()
        self._in_use_connections = weakref.WeakSet()  # type: ignore[assignment]
        self._look_again_ms = 0.0

    def make_connection(self) -> Any:
        self._created_connections = self._count()
        now_ms = monotonic_ms()
        if (
            self._created_connections >= self.max_connections
            and now_ms >= self._look_again_ms
        ):
            # A connection refers to itself, so one that nobody holds may still be there.
            self._look_again_ms = now_ms + LOOK_MS
            gc.collect()
            if self._available_connections:
                return self._available_connections.pop()
            self._created_connections = self._count()
        return super().make_connection()

    def places(self) -> set[Hashable]:
        """Return where its connections lead."""
        connections = [*self._available_connections, *self._in_use_connections]
        return {each.place for each in connections}

    def _count(self) -> int:
        return len(self._available_connections) + len(self._in_use_connections)


class _Known:
    """A connection that knows which server answers on it."""

    #: That of the server; empty until it is known.
    run_id = ""
    #: When this connection was opened, by `time.monotonic`.
    began_s = 0.0
    _is_known = False

    @property
    def address(self) -> str:
        """Where it leads to, for people."""
        path = getattr(self, "path", None)
        return path or f"{self.host}:{self.port}"  # type: ignore[attr-defined]

    @property
    def place(self) -> Hashable:
        """Where it leads to, and who asks: accounts have rights of their own."""
        return self.address, getattr(self, "username", None)

    def note_demoted(self) -> None:
        """Note that the server says that it is a replica. Connections that Sentinels lead note that themselves."""
        if not hasattr(self, "lead"):
            note_demoted(self)

    def _begin(self) -> None:
        self.run_id, self.began_s, self._is_known = "", time.monotonic(), False
        vars(self).pop("check_health", None)

    def _is_to_ask(self) -> bool:
        """Return whether to ask for the run id, once each time that the connection is opened."""
        was_known, self._is_known = self._is_known, True
        if was_known:
            return False
        if not why_unasked(self.place):
            return True
        note_open(self)
        return False

    def _note(self, told: bytes) -> None:
        self.run_id = run_id_in(told)
        # Whoever notes another server meanwhile finds this connection, or is found by it.
        note_open(self)
        note_answer(self, self.run_id)

    def _note_refusal(self, error: ResponseError) -> None:
        note_open(self)
        # Another error, such as BUSY, is that of the moment: the call will meet it.
        if is_refusal(error):
            note_refusal(self, error)


class _Whole(_Known):
    """A connection that an interrupt does not leave half open, with unread replies to its handshake."""

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except FormerServerError:
            self.connect()
        except BaseException:
            drop(self)
            raise

    def _connect(self) -> Any:
        self._begin()
        return super()._connect()  # type: ignore[misc]

    def on_connect(self) -> None:
        super().on_connect()  # type: ignore[misc]
        self._ask()

    # redis-py 6 and later call this one, and from `on_connect`.
    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        self._ask()

    def _ask(self) -> None:
        if not self._is_to_ask():
            return
        self.send_command("INFO", "server", check_health=False)  # type: ignore[attr-defined]
        try:
            told = self.read_response()  # type: ignore[attr-defined]
        except ResponseError as error:
            self._note_refusal(error)
        else:
            self._note(told)

    def shut(self) -> None:
        if hasattr(super(), "shut"):
            super().shut()  # type: ignore[misc]
        elif (sock := self._sock) is not None:  # type: ignore[attr-defined]
            # Called before each call, while no reply is outstanding. In its class, it would cost every call something.
            self.check_health = self._leave
            shut_socket(getattr(sock, "wrapped", sock))

    def _leave(self) -> None:
        drop(self)
        raise _left()


class _AsyncWhole(_Known):
    """The same for asyncio."""

    _of_loop: asyncio.AbstractEventLoop

    async def connect(self) -> None:
        try:
            await super().connect()  # type: ignore[misc]
        except FormerServerError:
            await self.connect()
        except BaseException:
            await adrop(self)
            raise

    async def _connect(self) -> None:
        self._begin()
        self._of_loop = asyncio.get_running_loop()
        await super()._connect()  # type: ignore[misc]

    async def on_connect(self) -> None:
        await super().on_connect()  # type: ignore[misc]
        await self._ask()

    async def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        await super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        await self._ask()

    async def _ask(self) -> None:
        if not self._is_to_ask():
            return
        await self.send_command("INFO", "server", check_health=False)  # type: ignore[attr-defined]
        try:
            told = await self.read_response()  # type: ignore[attr-defined]
        except ResponseError as error:
            self._note_refusal(error)
        else:
            self._note(told)

    def shut(self) -> None:
        if hasattr(super(), "shut"):
            super().shut()  # type: ignore[misc]
        elif (writer := self._writer) is not None:  # type: ignore[attr-defined]
            self.check_health = self._leave
            abort(self._of_loop, writer)

    async def _leave(self) -> None:
        await adrop(self)
        raise _left()


def _left() -> Demoted:
    """Return what to raise before anything was sent to a former server."""
    left = Demoted("another server has taken its place")
    mark_unsent(left)
    return left


@functools.cache
def whole(connection_class: type, *, is_async: bool) -> type:
    """Return a connection class of redis-py whose connections are open, or closed, and never half open."""
    mixin = _AsyncWhole if is_async else _Whole
    return type(connection_class.__name__, (mixin, connection_class), {})
