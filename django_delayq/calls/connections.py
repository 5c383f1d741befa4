"""The connection that a client uses for one call."""

from collections.abc import Mapping
from typing import Any


def node_of(client: Any, key: str | None) -> Any:
    """Return the client of the server that holds a key: the client itself, or a cluster's client for one node.

    Without a key, any node of a cluster will do.
    """
    return client.of_key(key) if has_nodes(client) else client


def has_nodes(client: Any) -> bool:
    """Return whether a client, sync or async, is that of a cluster, whose nodes have the connections."""
    return client.connection_pool is None


def nodes_of(client: Any) -> list[Any]:
    """Return the clients of all servers that hold keys: the client itself, or those of a cluster's primaries."""
    nodes: list[Any] = client.of_nodes() if has_nodes(client) else [client]
    return nodes


def arguments_of(client: Any) -> Mapping[str, Any]:
    """Return the arguments of a client's connections, sync or async; those of a cluster have no address."""
    pool = client.connection_pool
    arguments: Mapping[str, Any] = (
        client.arguments if pool is None else pool.connection_kwargs
    )
    return arguments


async def aborrow(pool: Any) -> Any:
    """Take a connection from an asyncio pool, one that is open."""
    connection = await borrow(pool)
    reader = connection._reader
    if reader is not None and reader.at_eof():
        # The pool of redis-py 8 lends what the server has closed, where servers may tell of their maintenance: by default
        # with RESP3.
        try:
            await connection.disconnect()
            await connection.connect()
        except BaseException:
            await pool.release(connection)
            raise
    return connection


def borrow(pool: Any) -> Any:
    """Take a connection from a pool. An asyncio pool returns an awaitable."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("EVALSHA")  # before redis-py 5.3
