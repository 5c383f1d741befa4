"""Making several calls: in one pipeline, or as a stream, where the next call is prepared while the server works."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from redis.client import Redis
from redis.exceptions import ClusterDownError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.connections import has_nodes, node_of
from django_delayq.calls.errors import ELSEWHERE, LOST, unhidden
from django_delayq.calls.running import run

T = TypeVar("T")


#: Calls of a stream that may be under way at once.
UNDER_WAY = 2


def run_all(client: Redis, calls: Sequence[Call[T]]) -> list[T | Exception]:
    """Make several calls in one pipeline, once. They are not atomic together. An error takes the place of its reply."""
    replies = _pipeline(client, [call.command() for call in calls])
    unknown = _unknown(replies)
    if unknown:
        # NOSCRIPT means that the call did not run: those calls, and only those, are sent again.
        for i, reply in zip(
            unknown,
            _pipeline(client, [calls[i].full_command() for i in unknown]),
            strict=True,
        ):
            replies[i] = reply
    return _read_all(calls, replies)


def _pipeline(client: Redis, commands: list[tuple[Argument, ...]]) -> list[Any]:
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(pipeline.execute(raise_on_error=False))


def _unknown(replies: Sequence[Any]) -> list[int]:
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _read_all(calls: Sequence[Call[T]], replies: Sequence[Any]) -> list[T | Exception]:
    read: list[T | Exception] = []
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, ResponseError):
            reply = unhidden(reply)
        read.append(reply if isinstance(reply, Exception) else call.read(reply))
    return read


def run_stream(
    client: Redis, calls: Iterable[Call[T] | None]
) -> Iterator[T | Exception]:
    """Make calls one after the other, and prepare the next while the server works on the last.

    Where None comes in place of a call, all replies are yielded before the next call is prepared.

    The client has a connection of its own, or one to each node of a cluster. An error takes the place of its reply. A lost connection ends the stream.
    If the source of the calls forks, the connection stays the parent's, and for the child it is lost.
    """
    stream = _Stream(client)
    try:
        for call in calls:
            if call is not None:
                stream.send(call)
            most = 0 if call is None or stream.failure is not None else UNDER_WAY
            while len(stream.under_way) > most:
                yield stream.read()
            if stream.failure is not None:
                break
        while stream.under_way:
            yield stream.read()
    except BaseException:
        # The source of the calls failed, or the reader went away: replies are still to come.
        stream.disconnect()
        raise


class _Stream:
    """The calls of a `run_stream` that are under way, each with its connection."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._pid = os.getpid()
        self.under_way: deque[tuple[Call[Any], Any]] = deque()
        self._connections: set[Any] = set()
        #: Why nothing more can be sent.
        self.failure: Exception | None = None

    def send(self, call: Call[Any]) -> None:
        connection = None
        try:
            _check_owner(self._pid)
            connection = node_of(self._client, next(iter(call.keys), None)).connection
            self._connections.add(connection)
            connection.send_command(*call.command())
        except LOST as error:
            self._fail(connection, error)
        except ClusterDownError as error:
            # No node serves the slot, so nothing was sent.
            self.failure = error
        self.under_way.append((call, connection))

    def read(self) -> Any:
        """Return the next reply, or the error in its place."""
        call, connection = self.under_way.popleft()
        if self.failure is not None:
            return self.failure
        try:
            _check_owner(self._pid)
            return call.read(connection.read_response())
        except ResponseError as error:
            if isinstance(error, ELSEWHERE) and has_nodes(self._client):
                return self._run(call)
            return unhidden(error)
        except LOST as error:
            return self._fail(connection, error)

    def _run(self, call: Call[Any]) -> Any:
        """Make a call anew that a node did not run: it has not seen the script, or has the slot no more."""
        try:
            return run(self._client.pooled(), call)  # type: ignore[attr-defined]
        except LOST as error:
            return self._fail(None, error)
        except RedisError as error:
            return error

    def _fail(self, connection: Any, error: Exception) -> Exception:
        if connection is not None:
            connection.disconnect()
        self.failure = error
        return error

    def disconnect(self) -> None:
        """Drop all connections, with the replies that are still to come."""
        for connection in self._connections:
            connection.disconnect()


def _check_owner(pid: int) -> None:
    """Raise the error of a lost connection in a child of the process that the connection belongs to.

    The child would read the parent's replies, and its calls would mix with the parent's.
    """
    if os.getpid() != pid:
        raise RedisConnectionError(
            "this process was forked while the calls were made; their replies belong to its parent"
        )
