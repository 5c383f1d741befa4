"""A Redis or Valkey Cluster, as a URL or a client of redis-py names it, and how its nodes are found.

redis-py's engine asks the nodes for their slots, which `slots` keeps. Calls are sent by the clients in `cluster_client`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.backoff import NoBackoff
from redis.client import Redis
from redis.cluster import ClusterNode, NodesManager, cleanup_kwargs
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    RedisClusterException,
    RedisError,
)
from redis.retry import Retry

from django_delayq.exceptions import InvalidSettings
from django_delayq.transport.cluster_client import AsyncClusterClient, ClusterClient
from django_delayq.transport.errors import mark_of_some
from django_delayq.transport.exchange import Address
from django_delayq.transport.nodes import ATTENTIVE, Pools
from django_delayq.transport.server import Server
from django_delayq.transport.slots import Slots
from django_delayq.transport.url import nodes_of

#: For so long a node is waited for that is asked where the slots are, s.
TABLE_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and how to connect to its nodes: what `Server` is to a single server."""

    #: How to connect to a node; its address is that of the first node that was named.
    server: Server
    nodes: Sequence[Address]
    #: redis-py's engine of a client that was given.
    engine: NodesManager | None = field(default=None, repr=False)

    @classmethod
    def of(cls, client: Any) -> "Cluster":
        """Return the cluster of redis-py's cluster client."""
        node = client.get_default_node()
        server = Server.of_pool(client.get_redis_connection(node).connection_pool)
        return cls(server, [Address(node.host, node.port)], client.nodes_manager)

    @property
    def decodes(self) -> bool:
        """Whether replies come as text and not as bytes."""
        return self.server.decodes

    def slots(self) -> Slots:
        """Make a table of slots. Nothing connects yet.

        Raises:
            InvalidSettings: this redis-py cannot tell the redirections of nodes from other errors.
        """
        # A client that was given works with older ones as well, as long as no slot moves.
        if self.engine is None and int(redis.__version__.partition(".")[0]) < 6:
            raise InvalidSettings(
                f"a cluster needs redis-py 6 or later, and this is {redis.__version__}: pip install --upgrade redis"
            )
        return Slots(self._find_engine)

    def pool(self, **overrides: Any) -> Pools[ConnectionPool]:
        """Make pools, one a node. Nothing connects yet."""
        slots = self.slots()

        def make(address: Address) -> ConnectionPool:
            server = self._at(address)
            if (attentive := ATTENTIVE.get(server.connection_class)) is not None:
                server = Server(attentive, {**server.arguments, "slots": slots})
            return server.pool(**overrides)

        return Pools(slots, make, self.server.concealed() | overrides)

    def async_pool(self) -> Pools[AsyncConnectionPool]:
        """Make asyncio pools, one a node. They belong to the event loop that uses them first."""
        return Pools(
            self.slots(),
            lambda address: self._at(address).async_pool(),
            self.server.concealed(),
        )

    def client(self, pool: Any, *, is_single: bool = False) -> ClusterClient:
        """Make a client on pools; ``is_single``: for one thread, with one connection a node."""
        return ClusterClient(pool, is_single=is_single)

    def async_client(self, pool: Any) -> AsyncClusterClient:
        """Make an asyncio client on pools."""
        return AsyncClusterClient(pool)

    def _at(self, address: Address) -> Server:
        arguments = {**self.server.arguments, "host": address.host}
        arguments["port"] = address.port
        return Server(self.server.connection_class, arguments)

    def _find_engine(self) -> NodesManager:
        if self.engine is not None:
            return self.engine
        arguments = cleanup_kwargs(**self.server.concealed())
        for name in ("host", "port", "db", "max_connections", "retry"):
            arguments.pop(name, None)
        for name in ("socket_timeout", "socket_connect_timeout"):
            # Any node knows the table, so one that hangs is not waited for.
            arguments[name] = min(arguments.get(name) or math.inf, TABLE_PATIENCE_S)
        if issubclass(self.server.connection_class, SSLConnection):
            arguments["ssl"] = True
        try:
            return NodesManager(
                startup_nodes=[ClusterNode(*address) for address in self.nodes],
                require_full_coverage=False,
                **arguments,
            )
        except RedisClusterException as error:
            # This is what the last node said.
            told = error.__cause__ or error
            if _is_refusal(told) and not all(
                _refuses(Address(*address), arguments) for address in self.nodes
            ):
                mark_of_some(told)
            raise


def _refuses(node: Address, arguments: dict[str, Any]) -> bool:
    """Return whether a node refuses a connection, and would do so again."""
    client = Redis(
        host=node.host, port=node.port, retry=Retry(NoBackoff(), 0), **arguments
    )
    try:
        client.ping()
    except RedisError as error:
        return _is_refusal(error)
    finally:
        client.close()
    return False


def _is_refusal(error: BaseException) -> bool:
    return isinstance(
        error, AuthenticationError | AuthorizationError
    ) or "CERTIFICATE_" in str(error)


def server_at(url: str) -> Server | Cluster:
    """Return the server or the cluster at a URL."""
    if (nodes := nodes_of(url)) is None:
        # Each thread keeps a connection. A limit for a pool would make calls of other threads fail.
        return replace(Server.at(url), max_connections=None)
    servers = [Server.at(node) for node in nodes]
    return Cluster(
        servers[0],
        [
            Address(
                server.arguments.get("host", "localhost"),
                server.arguments.get("port", 6379),
            )
            for server in servers
        ],
    )
