"""Pools that keep all their connections, wherever an interrupt falls, and that lend none which is half open."""

import functools
import gc
import threading
import weakref
from typing import Any

from redis.connection import ConnectionPool


class Pool(ConnectionPool):
    """A pool of redis-py whose lent connections count only as long as somebody holds them.

    An interrupt may end a caller before it has stored the connection that it got. Nobody can release that one.
    """

    def reset(self) -> None:
        super().reset()
        # redis-py before 5.3 has a plain lock. A connection that is freed meanwhile may come back in the same thread.
        self._lock = threading.RLock()
        self._in_use_connections = weakref.WeakSet()  # type: ignore[assignment]

    def make_connection(self) -> Any:
        self._created_connections = self._count()
        if self._created_connections >= self.max_connections:
            # A connection refers to itself, so one that nobody holds may still be there.
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
            self.disconnect()  # type: ignore[attr-defined]
            raise


class _AsyncWhole:
    """The same for asyncio."""

    async def connect(self) -> None:
        try:
            await super().connect()  # type: ignore[misc]
        except BaseException:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise


@functools.cache
def whole(connection_class: type, *, is_async: bool) -> type:
    """Return a connection class of redis-py whose connections are open, or closed, and never half open."""
    mixin = _AsyncWhole if is_async else _Whole
    return type(connection_class.__name__, (mixin, connection_class), {})
