"""Pools that keep all their connections, wherever an interrupt falls, and that lend none which is half open."""

import functools
import gc
import threading
import weakref
from typing import Any

from redis.connection import ConnectionPool

from django_delayq.calls.connections import adrop, drop
from django_delayq.clock import monotonic_ms

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

    def _count(self) -> int:
        return len(self._available_connections) + len(self._in_use_connections)


class _Whole:
    """A connection that an interrupt does not leave half open, with unread replies to its handshake."""

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except BaseException:
            drop(self)
            raise


class _AsyncWhole:
    """The same for asyncio."""

    async def connect(self) -> None:
        try:
            await super().connect()  # type: ignore[misc]
        except BaseException:
            await adrop(self)
            raise


@functools.cache
def whole(connection_class: type, *, is_async: bool) -> type:
    """Return a connection class of redis-py whose connections are open, or closed, and never half open."""
    mixin = _AsyncWhole if is_async else _Whole
    return type(connection_class.__name__, (mixin, connection_class), {})
