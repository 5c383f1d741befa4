"""The clients behind a queue object: given, made from a URL, or those of the process; sync and async."""

import asyncio
import os
import re
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from redis import asyncio as aio
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.client import Redis
from redis.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from django_delayq.calls.connections import node_of
from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, conceal, redact_url, show
from django_delayq.waiting.connection import POOL_ARGUMENTS

#: What ``connection=`` takes.
Given = Redis | aio.Redis | str
#: Gives the process's own clients: a sync one, and for the running event loop an async one.
DefaultConnection = Callable[
    [], tuple[Callable[[], Redis], Callable[[], Awaitable[aio.Redis]]]
]

#: For clients made from a URL that says nothing else. redis-py before 8 would wait for ever.
_DEADLINES_S: dict[str, Any] = {"socket_timeout": 5.0, "socket_connect_timeout": 3.0}

# What has to be made anew for a client of the other kind.
_NOT_SHARED = frozenset(POOL_ARGUMENTS) | {
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "redis_connect_func",
    "parser_class",
    "connection_pool",
}
_TWINS: tuple[tuple[type, type], ...] = (
    (UnixDomainSocketConnection, AsyncUnixConnection),
    (SSLConnection, AsyncSSLConnection),
    (Connection, AsyncConnection),
)

_default: DefaultConnection | None = None


def set_default_connection(provider: DefaultConnection | None) -> None:
    """Say where clients come from for objects that are made without a connection."""
    global _default
    _default = provider


class Clients:
    """The sync and the async client of one queue object; made when they are needed first."""

    def __init__(self, connection: Given | None) -> None:
        """Raise InvalidSettings unless ``connection`` is a client, a URL, or None for the process's own."""
        if isinstance(connection, str):
            connection = _read_url(connection)
        if not isinstance(connection, Redis | aio.Redis | str | None) and not hasattr(
            connection, "get_node_from_key"
        ):
            raise InvalidSettings(
                "connection has to be a redis.Redis, a redis.asyncio.Redis or a URL;"
                f" got {show(connection)}"
            )
        self._given = connection
        # One at most. A dictionary, because it is filled in one step: of two clients that threads make at once one is
        # dropped before anybody has it. Later that would close the connections under the thread that uses them.
        self._made: dict[str, Redis] = {}
        self._of_thread = threading.local()

    @property
    def is_default(self) -> bool:
        """Whether the clients are the process's own."""
        return self._given is None

    def sync(self) -> Redis:
        """Return the sync client; its replies are bytes."""
        if self._given is None:
            return _provided()[0]()
        return self._made.get("sync") or self._made.setdefault(
            "sync", self._make_sync(self._given)
        )

    def of_thread(self) -> Redis:
        """Return a client for this thread alone, with a connection of its own; where one was given, that.

        The bookkeeping of a pool was a third of what taking an element cost us.
        """
        client = self.sync()
        if client is self._given:
            return client
        pool, pid = client.connection_pool, os.getpid()
        mine: Redis
        mine, made_from = getattr(self._of_thread, "made", (client, None))
        if made_from == (pool, pid):
            return mine
        try:
            # It goes with its thread, or with us; the connection then goes back to the pool.
            mine = Redis(connection_pool=pool, single_connection_client=True)
        except (RedisConnectionError, RedisTimeoutError):
            # The call will meet that, and knows what to do.
            return client
        self._of_thread.made = mine, (pool, pid)
        return mine

    def _make_sync(self, given: Given) -> Redis:
        # redis-py would repeat whatever it sent; what may be repeated, and how often, is for ``calls.running`` to know.
        retry = Retry(NoBackoff(), 0)
        if isinstance(given, str):
            client = Redis.from_url(given, retry=retry, **_DEADLINES_S)
            _conceal_pool(client)
            return client
        arguments = _arguments_of(given)
        if isinstance(given, Redis) and not arguments.get("decode_responses"):
            return given
        pool = ConnectionPool(
            connection_class=_twin_class(given, 0),
            **_shared(arguments),
            retry=retry,
        )
        return Redis.from_pool(pool)

    async def asynchronous(self) -> aio.Redis:
        """Return the async client of the running event loop; its replies are bytes."""
        if self._given is None:
            return await _provided()[1]()
        if isinstance(self._given, aio.Redis) and not _arguments_of(self._given).get(
            "decode_responses"
        ):
            return self._given
        clients = _async_clients.setdefault(asyncio.get_running_loop(), {})
        # Shared by all objects with this connection: an object that is dropped leaves none behind.
        key = self._given if isinstance(self._given, str) else id(self._given)
        if key not in clients:
            client = _make_async(self._given)
            keeper = _close_with_loop(client)
            await anext(keeper)
            clients[key] = _AsyncClient(client, keeper, self._given)
        return clients[key].client

    def close(self) -> None:
        """Close the sync client where it was made here; the next use makes another. Async ones end with their loop."""
        client = self._made.pop("sync", None)
        if client is not None and client is not self._given:
            client.close()
            client.connection_pool.disconnect()


class _AsyncClient(NamedTuple):
    client: aio.Redis
    #: Closes the client; open as long as the loop.
    keeper: AsyncGenerator[None, None]
    #: What it was made from; held so that nothing else gets its id.
    given: Given


_async_clients: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[str | int, _AsyncClient]
] = weakref.WeakKeyDictionary()


def _make_async(given: Given) -> aio.Redis:
    retry = AsyncRetry(NoBackoff(), 0)
    if isinstance(given, str):
        client = aio.Redis.from_url(given, retry=retry, **_DEADLINES_S)
        _conceal_pool(client)
        return client
    pool = AsyncConnectionPool(
        connection_class=_twin_class(given, 1),
        **_shared(_arguments_of(given)),
        retry=retry,
    )
    return aio.Redis.from_pool(pool)


def is_readable(url: str) -> bool:
    """Whether redis-py reads a URL, and as it is meant: it takes a database that is no number for database 0."""
    try:
        url.encode()
        # Opens nothing. A parameter that redis-py does not know is a TypeError here.
        ConnectionPool.from_url(url).make_connection()
        place = urlparse(url)
    except (ValueError, TypeError, RedisError):
        return False
    if place.scheme == "unix":
        # redis-py ignores a host, which is the start of a password with a slash in it, and takes the rest for the path.
        return not place.netloc or "@" in place.netloc
    return re.fullmatch(r"/?[0-9]*/?", unquote(place.path)) is not None


def _read_url(url: str) -> SecretUrl:
    if not is_readable(url):
        # Not chained: what redis-py says of a URL may repeat a part of its password.
        raise InvalidSettings(
            f"connection is {redact_url(url)!r}, which is not a URL that redis-py reads; give one such as"
            " 'redis://localhost:6379/0', its database a number, its parameters those of redis-py, special characters"
            " of a password as %23"
        )
    return SecretUrl(url)


def _conceal_pool(client: Redis | aio.Redis) -> None:
    pool: Any = client.connection_pool
    is_async = isinstance(client, aio.Redis)
    pool.connection_kwargs = conceal(pool.connection_kwargs, is_async=is_async)


async def _close_with_loop(client: aio.Redis) -> AsyncGenerator[None, None]:
    # asyncio.run() closes the generators that are still open when its loop ends.
    try:
        yield
    finally:
        await client.aclose()


def _provided() -> tuple[Callable[[], Redis], Callable[[], Awaitable[aio.Redis]]]:
    if _default is None:
        raise InvalidSettings(
            "no connection: give connection=redis.Redis(...) or a URL such as 'redis://localhost:6379/0',"
            " or add 'django_delayq' to INSTALLED_APPS and set DELAYQ['CONNECTION']"
        )
    return _default()


def _arguments_of(client: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = node_of(client, None).connection_pool.connection_kwargs
    return arguments


def _shared(arguments: dict[str, Any]) -> dict[str, Any]:
    shared = {key: value for key, value in arguments.items() if key not in _NOT_SHARED}
    return shared | {"decode_responses": False}


def _twin_class(client: Any, kind: int) -> type:
    cls = node_of(client, None).connection_pool.connection_class
    for twins in _TWINS:
        if issubclass(cls, twins) and not cls.__name__.startswith("Sentinel"):
            return twins[kind]
    raise InvalidSettings(
        f"cannot make the other kind of client, sync or async, from {show(client)};"
        " give a URL, or use the methods of the kind that it has"
    )
