"""A server as redis-py's connections know it, and the pools of connections to it, sync and async.

Every pool has time-outs, returns bytes, retries nothing and conceals its password.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.connection import AbstractConnection as AsyncAbstractConnection
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
from redis.retry import Retry

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import conceal
from django_delayq.transport.call import CallPacker
from django_delayq.transport.client import Client
from django_delayq.transport.pool import Pool, whole
from django_delayq.transport.primary import (
    AsyncPrimaryConnection,
    AsyncPrimarySSLConnection,
    PrimaryConnection,
    PrimarySSLConnection,
)
from django_delayq.transport.sentinels import Address, Sentinels
from django_delayq.transport.tls import unchecked, with_host_check
from django_delayq.transport.url import read_sentinel_url

#: Seconds without a byte after which a connection counts as dead. redis-py before 8 would wait forever.
SOCKET_TIMEOUT_S = 5.0
#: Seconds to wait for a connection.
CONNECT_TIMEOUT_S = 3.0
#: Connections of a pool that has no limit. redis-py 8 takes no number for 100.
UNLIMITED = 2**31
_TIME_OUTS_S = {
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
}
#: Arguments by which a pool keeps its books. A connection without a pool does not take them.
POOL_ARGUMENTS = (
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "orig_host_address",
    "orig_socket_timeout",
    "orig_socket_connect_timeout",
    "event_dispatcher",
    "himport_registry",
    "cache",
    "cache_config",
)
# redis-py would repeat whatever it sent. `recover` knows which calls may be repeated, and how often.
_RETRIES = {"retry_on_error", "retry_on_timeout"}
# What a connection of the other kind cannot use.
_OF_ONE_KIND = {
    "command_packer",
    "connection_pool",
    "parser_class",
    "redis_connect_func",
}
_TWINS: tuple[tuple[type, type], ...] = (
    (PrimarySSLConnection, AsyncPrimarySSLConnection),
    (PrimaryConnection, AsyncPrimaryConnection),
    (UnixDomainSocketConnection, AsyncUnixConnection),
    (SSLConnection, AsyncSSLConnection),
    (Connection, AsyncConnection),
)


@dataclass(frozen=True, slots=True)
class Server:
    """One server, and how to connect to it."""

    #: A class of redis-py, sync or async.
    connection_class: type
    arguments: Mapping[str, Any] = field(repr=False)
    #: Limit of one pool; None: there is none.
    max_connections: int | None = None

    @classmethod
    def at(cls, url: str) -> "Server":
        """Return the server at a URL, or the one that the Sentinels of a URL lead to."""
        led = read_sentinel_url(url)
        if led is not None:
            sentinels = Sentinels(
                led.name,
                led.addresses,
                dict.fromkeys(led.addresses, conceal(led.sentinel_arguments)),
            )
            arguments = led.arguments | {"sentinels": sentinels}
            made = PrimarySSLConnection if led.has_tls else PrimaryConnection
            return cls(made, arguments, led.max_connections)
        pool = ConnectionPool.from_url(url)
        return cls(pool.connection_class, pool.connection_kwargs, pool.max_connections)

    @classmethod
    def of(cls, client: Any) -> "Server":
        """Return the server of a client, sync or async."""
        return cls.of_pool(client.connection_pool)

    @classmethod
    def of_pool(cls, pool: Any) -> "Server":
        """Return the server that a pool leads to.

        Raises:
            InvalidSettings: Sentinels lead it to replicas.
        """
        if hasattr(pool, "sentinel_manager"):
            return cls._of_sentinel_pool(pool)
        return cls(pool.connection_class, pool.connection_kwargs)

    @classmethod
    def _of_sentinel_pool(cls, pool: Any) -> "Server":
        if not pool.is_master:
            raise InvalidSettings(
                f"the Sentinels lead this connection to replicas of {pool.service_name!r}, which take no writes;"
                " give the client of Sentinel.master_for, or a cache without is_master=false"
            )
        manager = pool.sentinel_manager
        nodes: dict[Address, dict[str, Any]] = {}
        for client in manager.sentinels:
            found = client.connection_pool
            arguments = {
                name: value
                for name, value in found.connection_kwargs.items()
                if name not in _RETRIES.union(POOL_ARGUMENTS, _OF_ONE_KIND)
            }
            if _has_tls(found.connection_class):
                arguments["ssl"] = True
            address = arguments.get("host", "localhost"), arguments.get("port", 6379)
            nodes[address] = conceal(arguments)
        sentinels = Sentinels(
            pool.service_name,
            tuple(nodes),
            nodes,
            min_others=manager.min_other_sentinels,
            # redis-py before 6 has none.
            forced_host=getattr(manager, "_force_master_ip", None),
        )
        is_async = issubclass(pool.connection_class, AsyncAbstractConnection)
        made = _TWINS[0 if _has_tls(pool.connection_class) else 1][is_async]
        return cls(made, {**pool.connection_kwargs, "sentinels": sentinels})

    @property
    def is_led(self) -> bool:
        """Whether Sentinels say where it is."""
        return "sentinels" in self.arguments

    @property
    def decodes(self) -> bool:
        """Whether replies come as text and not as bytes."""
        return bool(self.arguments.get("decode_responses"))

    def unchecked(self) -> dict[str, str]:
        """Return the argument that lets a stranger pass for the ``"server"`` or the ``"Sentinels"``, for each that has one."""
        found = {}
        if _has_tls(self.connection_class):
            found["server"] = unchecked(self.arguments)
        if self.is_led:
            found["Sentinels"] = self.arguments["sentinels"].unchecked()
        return {name: argument for name, argument in found.items() if argument}

    def pool(self, **overrides: Any) -> Pool:
        """Make a pool. Nothing connects yet."""
        arguments = self._arguments(is_async=False)
        arguments.setdefault("command_packer", CallPacker())
        arguments["retry"] = Retry(NoBackoff(), 0)
        return Pool(
            connection_class=whole(self._class(is_async=False), is_async=False),
            max_connections=self.max_connections or UNLIMITED,
            **arguments | overrides,
        )

    def async_pool(self) -> AsyncConnectionPool:
        """Make an asyncio pool. It belongs to the event loop that uses it first."""
        arguments = self._arguments(is_async=True)
        arguments["retry"] = AsyncRetry(NoBackoff(), 0)
        return AsyncConnectionPool(
            connection_class=whole(self._class(is_async=True), is_async=True),
            max_connections=self.max_connections or UNLIMITED,
            **arguments,
        )

    def client(self, pool: Any, *, is_single: bool = False) -> Redis:
        """Make a client on a pool; ``is_single``: for one thread, with a connection of its own.

        Raises:
            redis.exceptions.ConnectionError: ``is_single``, and the server cannot be reached.
        """
        return Client(connection_pool=pool, single_connection_client=is_single)

    def async_client(self, pool: Any) -> AsyncRedis:
        """Make an asyncio client on a pool."""
        return AsyncRedis(connection_pool=pool)

    def concealed(self) -> dict[str, Any]:
        """Return the arguments of a connection that is not asyncio's; no repr of them shows the password."""
        return self._arguments(is_async=False)

    def _is_async(self) -> bool:
        return issubclass(self.connection_class, AsyncAbstractConnection)

    def _class(self, *, is_async: bool) -> type:
        cls = self.connection_class
        if self._is_async() is is_async:
            return cls
        for twins in _TWINS:
            if issubclass(cls, twins):
                return twins[is_async]
        raise InvalidSettings(
            f"cannot make the other kind of client, sync or async, from one with connections of type {cls.__name__};"
            " give a URL, or call only the methods of its own kind"
        )

    def _arguments(self, *, is_async: bool) -> dict[str, Any]:
        left_out = _RETRIES.union(POOL_ARGUMENTS)
        if self._is_async() is is_async:
            left_out.discard("maint_notifications_config")
        else:
            left_out |= _OF_ONE_KIND
        if self.is_led:
            # Of redis-py's own pool of Sentinels, which we do without.
            left_out.add("connection_pool")
        arguments = {
            name: value
            for name, value in self.arguments.items()
            if name not in left_out
        }
        arguments |= {"decode_responses": False, "encoding": "utf-8"}
        # redis-py's own clients have both, without a value, before its version 8.
        for name, time_out_s in _TIME_OUTS_S.items():
            if arguments.get(name) is None:
                arguments[name] = time_out_s
        if _has_tls(self.connection_class):
            arguments = with_host_check(arguments)
        return conceal(arguments, is_async=is_async)


def _has_tls(connection_class: type) -> bool:
    return issubclass(connection_class, SSLConnection | AsyncSSLConnection)
