"""Connections of one thread that wait for the server: for messages, or for a list to fill.

A client's own connections are pooled and may retry. A connection that waits must do neither, and must notice when the
other end is gone.
"""

import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redis.backoff import NoBackoff
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from django_delayq.clock import boottime_ms
from django_delayq.transport.call import Call
from django_delayq.transport.connections import drop, has_nodes, leave, node_of
from django_delayq.transport.errors import (
    FAILED,
    LOST,
    REDIRECTIONS,
    is_demoted,
    unhidden,
)
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.recovery import Outcome, Tries
from django_delayq.transport.run import go_on
from django_delayq.transport.server import POOL_ARGUMENTS

T = TypeVar("T")


class Readable(Protocol):
    """Anything that `wait_readable` can wait for."""

    def fileno(self) -> int: ...


class DedicatedConnection:
    """A connection like those of a client, but without a pool, without retries, and with a deadline on every read."""

    def __init__(
        self, client: "Redis", *, deadline_s: float, key: str | None = None
    ) -> None:
        """Prepare a connection to the server of a client, or to the node of a cluster that holds ``key``."""
        self._client = client
        self._key = key
        self._deadline_s = deadline_s
        # Made by `connect`: to find a node of a cluster may fail.
        self._connection: Any = None

    def _new(self) -> Any:
        pool = node_of(self._client, self._key).connection_pool
        deadline_s = self._deadline_s
        arguments = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name not in POOL_ARGUMENTS
        }
        arguments |= {
            "socket_timeout": deadline_s,
            "socket_connect_timeout": deadline_s,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "decode_responses": False,
            # In RESP2 messages are plain arrays, whatever handlers the client has set up for RESP3.
            "protocol": 2,
        }
        if arguments.get("password") and not arguments.get("username"):
            # redis-py 8 does the same for RESP3. A server without a password refuses AUTH with a password alone, while it
            # lets in the client's other connections.
            arguments["username"] = "default"
        # The connections of redis-py's Sentinel pool hold it by a weak reference only.
        self._pool = pool
        return pool.connection_class(**arguments)

    def connect(self) -> bool:
        """Connect unless connected. Return whether this made a new connection."""
        connection = self._connection
        if connection is None or connection.pid != os.getpid():
            self._connection = self._new()  # the socket is the parent's
        elif connection._sock is not None:
            return False
        elif has_nodes(self._client):
            self._connection = self._new()  # another node may hold the key now
        try:
            self._connection.connect()
        except BaseException as error:
            # An interrupt may leave it half open.
            self.close()
            if isinstance(error, LOST):
                self._doubt()
            raise
        return True

    def send(self, *command: bytes | str | int | float) -> None:
        """Send one command."""
        self._connection.send_command(*command, check_health=False)

    def read(self) -> Any:
        """Read one reply or message. Raise an error reply."""
        try:
            return self._connection.read_response()
        except ResponseError as error:
            if is_demoted(error):
                leave(self._connection)
                self.close()
            elif isinstance(error, REDIRECTIONS):
                self._doubt()
            raise

    def _doubt(self) -> None:
        """Have a cluster's client ask again where its slots are, before the next connection is made."""
        if has_nodes(self._client):
            self._client.doubt()  # type: ignore[attr-defined]

    def command(self, *command: bytes | str | int | float) -> Any:
        """Send one command and return its reply. Never repeat it."""
        try:
            if not self.connect():
                # It may lead to a former server.
                self._connection.check_health()
            self.send(*command)
            return self.read()
        except ResponseError:
            raise
        except BaseException:
            # An unread reply would be taken for the reply to the next command.
            self.close()
            raise

    def run(self, call: Call[T]) -> T:
        """Make one call, and make it again only if the server did not run it."""
        exchange, now_ms = Exchange((call,), repeats=False), boottime_ms()
        results = go_on(self._send, exchange, self._send(exchange), Tries(now_ms))
        return results[0]  # type: ignore[no-any-return]

    def _send(self, exchange: Exchange, where: object = None) -> Outcome:
        try:
            replies = [self.command(*exchange.calls[0].command())]
        except FAILED as error:
            replies = [unhidden(error)]
        return Outcome(replies, boottime_ms())

    def has_reply(self) -> bool:
        """Return whether `read` would find something, without waiting.

        Raises:
            redis.exceptions.ConnectionError: the other end has closed the connection.
        """
        return bool(self._connection.can_read(timeout=0))

    def fileno(self) -> int:
        """Return the socket's descriptor.

        Raises:
            redis.exceptions.ConnectionError: the connection is closed.
        """
        # redis-py has no public way to wait for two sockets at once.
        sock: socket.socket | None = getattr(self._connection, "_sock", None)
        if sock is None:
            raise RedisConnectionError("the connection is closed")
        return sock.fileno()

    def close(self) -> None:
        """Close the socket. `connect` opens another one."""
        if self._connection is not None:
            drop(self._connection)


class Waker:
    """Ends a `wait_readable` from another thread."""

    def __init__(self) -> None:
        # Sockets, not a pipe: a closed socket object raises, while a closed descriptor may be another file by now.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        """End the wait, or if nobody waits, the next one. After `close` nothing happens."""
        # BlockingIOError: the socket is full of wakes that nobody has read yet.
        with suppress(OSError):
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Read the wakes. Look at their reasons afterwards, not before, or one could be missed."""
        with suppress(OSError):
            self._reader.recv(65536)

    def fileno(self) -> int:
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def wait_readable(waiting: Sequence[Readable], timeout_s: float | None) -> None:
    """Wait until one of these can be read, or the time is over."""
    # Not select(), which takes no descriptor above 1,023.
    poll = select.poll()
    for one in waiting:
        poll.register(one.fileno(), select.POLLIN)
    poll.poll(None if timeout_s is None else max(0, timeout_s * 1000))


def address_of(client: Redis) -> object:
    """Return a value that is equal for clients of the same server and database.

    Sentinels take the place of an address that they know. A cluster has no single address, so its client identifies it.
    """
    pool = client.connection_pool
    if pool is None:
        return id(client)
    arguments = pool.connection_kwargs
    if not {"path", "host", "sentinels"}.intersection(arguments):
        return id(pool)
    return tuple(
        arguments.get(name)
        for name in ("path", "host", "port", "sentinels", "db", "username")
    )
