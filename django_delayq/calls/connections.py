"""The connection that a client has for one call."""

from typing import Any


def node_of(client: Any, key: str | None) -> Any:
    """Return the client itself, or of a cluster's client that of the node that holds a key, or of any node."""
    if not hasattr(client, "get_node_from_key"):
        return client
    node = client.get_default_node() if key is None else client.get_node_from_key(key)
    return client.get_redis_connection(node)


def borrow(pool: Any) -> Any:
    """Take a connection from a pool; from an asyncio pool, something to await."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("EVALSHA")  # before redis-py 5.3
