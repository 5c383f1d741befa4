"""The connection that a client uses for one call."""

from typing import Any


def node_of(client: Any, key: str | None) -> Any:
    """Return the client of the server that holds a key: the client itself, or a cluster's client for one node.

    Without a key, any node of a cluster will do.
    """
    return client.of_key(key) if hasattr(client, "of_key") else client


def borrow(pool: Any) -> Any:
    """Take a connection from a pool. An asyncio pool returns an awaitable."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("EVALSHA")  # before redis-py 5.3
