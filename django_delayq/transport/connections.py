"""The connection that a client uses for one call.

Each way to make a call sends and reads inside `ask`, `converse` or `lent`. Anything but a complete reply closes the
connection: after an interrupt, such as Ctrl-C or a cancellation, a later call would read the replies that are still to
come as its own. A server that says that it is a replica loses the connection as well: behind a name or a virtual address
the next one may lead to the new primary.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis.client import Redis
from redis.exceptions import RedisError, ResponseError

from django_delayq.transport.errors import (
    LOST,
    TURNED_AWAY,
    is_demoted,
    mark_unsent,
    of_those_behind,
    unhidden,
)


def node_of(client: Any, key: str | None) -> Any:
    """Return the client of the server that holds a key: the client itself, or a cluster's client for one node.

    Without a key, any node of a cluster will do.
    """
    return client.of_key(key) if has_nodes(client) else client


def has_nodes(client: Any) -> bool:
    """Return whether a client, sync or async, is that of a cluster, whose nodes have the connections."""
    return client.connection_pool is None


def pooled(client: Any) -> Any:
    """Return a client of the same server or cluster that has no connection of its own, as that one is occupied."""
    if has_nodes(client):
        return client.pooled()
    return Redis(connection_pool=client.connection_pool)


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


def disconnect(client: Any) -> None:
    """Close the connections that a client of one thread keeps: its own, or one to each node of a cluster."""
    for node in client.kept() if has_nodes(client) else [client]:
        if node.connection is not None:
            drop(node.connection)


def drop(connection: Any) -> None:
    """Close a connection. It is closed even if a second interrupt ends `disconnect()`."""
    try:
        connection.disconnect()
    finally:
        connection._sock = None


async def adrop(connection: Any) -> None:
    """`drop` for an asyncio connection."""
    try:
        await connection.disconnect(nowait=True)
    finally:
        connection._reader = connection._writer = None


def leave(connection: Any) -> None:
    """Close a connection whose server says that it is a replica."""
    drop(connection)
    _tell(connection)


def _tell(connection: Any) -> None:
    # Ours know which other connections lead to that server.
    if (note := getattr(connection, "note_demoted", None)) is not None:
        note()


def ask(connection: Any, command: tuple[Any, ...]) -> Any:
    """Send one command and return its reply. Anything but a complete reply closes the connection."""
    try:
        if getattr(connection, "_sock", None) is None:
            connect(connection)
        connection.send_command(*command)
        return connection.read_response()
    except ResponseError as error:
        if is_demoted(error):
            leave(connection)
        raise
    except BaseException:
        drop(connection)
        raise


def converse(
    client: Any, commands: Sequence[tuple[Any, ...]], *, is_own: bool = False
) -> list[Any]:
    """Send commands to one server in one write, and return their replies. An error takes the place of a reply.

    ``is_own``: on the client's own connection, if it has one. Only a pool notices before it sends that the server has
    closed a connection.
    """
    own = client.connection if is_own else None
    replies: list[Any] = []
    is_open = False
    try:
        with lent(client.connection_pool) if own is None else _held(own) as connection:
            is_open = True
            connection.send_packed_command(connection.pack_commands(commands))
            while len(replies) < len(commands):
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replies.append(unhidden(error))
            if any(map(is_demoted, replies)):
                leave(connection)
                if own is None:
                    _close_idle(client.connection_pool)
    except LOST as error:
        _fill(replies, commands, error, is_open)
    return replies


async def aconverse(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`converse` on an asyncio client, whose pool lends the connection."""
    replies: list[Any] = []
    is_open = False
    try:
        async with alent(client.connection_pool) as connection:
            is_open = True
            await connection.send_packed_command(connection.pack_commands(commands))
            while len(replies) < len(commands):
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(unhidden(error))
            if any(map(is_demoted, replies)):
                await adrop(connection)
                _tell(connection)
                await client.connection_pool.disconnect(inuse_connections=False)
    except LOST as error:
        _fill(replies, commands, error, is_open)
    return replies


def _fill(
    replies: list[Any], commands: Sequence[Any], error: Exception, is_open: bool
) -> None:
    replies.append(error)
    behind = of_those_behind(error) if is_open else error
    replies += [behind] * (len(commands) - len(replies))


@contextmanager
def _held(connection: Any) -> Iterator[Any]:
    """Open the connection of one thread for calls whose replies are all read inside the block."""
    try:
        if connection._sock is None:
            connect(connection)
        yield connection
    except BaseException:
        drop(connection)
        raise


def connect(connection: Any) -> None:
    """Open a connection, and mark an error as raised before anything was sent."""
    try:
        connection.connect()
    except LOST as error:
        mark_unsent(error)
        raise


@contextmanager
def lent(pool: Any) -> Iterator[Any]:
    """Lend a connection of a pool for calls whose replies are all read inside the block.

    An error reply of the server is a complete reply. After any other exception, and from a replica, the pool gets a
    closed connection back.
    """
    connection = borrow(pool)
    try:
        yield connection
    except ResponseError as error:
        if is_demoted(error):
            leave(connection)
            # They lead to the same server.
            _close_idle(pool)
        raise
    except BaseException:
        drop(connection)
        raise
    finally:
        pool.release(connection)


@asynccontextmanager
async def alent(pool: Any) -> AsyncIterator[Any]:
    """`lent` for an asyncio pool."""
    connection = await aborrow(pool)
    try:
        yield connection
    except ResponseError as error:
        if is_demoted(error):
            await adrop(connection)
            _tell(connection)
            await pool.disconnect(inuse_connections=False)
        raise
    except BaseException:
        await adrop(connection)
        raise
    finally:
        await pool.release(connection)


def borrow(pool: Any) -> Any:
    """Take a connection from a pool. An error is marked as raised before anything was sent."""
    try:
        return _get(pool)
    except LOST as error:
        mark_unsent(error)
        raise
    except RedisError:
        raise
    except BaseException:
        # A pool of redis-py takes back a connection that has not read the replies to its handshake.
        _close_idle(pool)
        raise


async def aborrow(pool: Any) -> Any:
    """Take a connection from an asyncio pool, one that is open. Its errors are those of `borrow`."""
    try:
        connection = await _get(pool)
    except LOST as error:
        mark_unsent(error)
        if isinstance(error.__cause__, TURNED_AWAY):
            # redis.asyncio wraps this error, where redis raises it bare.
            mark_unsent(error.__cause__)
            raise error.__cause__ from None
        raise
    except RedisError:
        raise
    except BaseException:
        await pool.disconnect(inuse_connections=False)
        raise
    reader = connection._reader
    if reader is not None and reader.at_eof():
        # The pool of redis-py 8 lends what the server has closed, where servers may tell of their maintenance: by default
        # with RESP3.
        try:
            await connection.disconnect()
            await connection.connect()
        except BaseException as error:
            if isinstance(error, LOST):
                mark_unsent(error)
            await adrop(connection)
            await pool.release(connection)
            raise
    return connection


def _close_idle(pool: Any) -> None:
    try:
        pool.disconnect(inuse_connections=False)
    except TypeError:
        # The blocking pool of redis-py before 8 knows no such argument.
        for connection in list(pool.pool.queue):
            if connection is not None:
                drop(connection)


def _get(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("EVALSHA")  # before redis-py 5.3
