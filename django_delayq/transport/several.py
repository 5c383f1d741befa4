"""Making several calls: in one pipeline, or as a stream, where the next call is prepared while the server works."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from redis.client import Redis
from redis.exceptions import ClusterDownError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.clock import boottime_ms
from django_delayq.transport.call import Call
from django_delayq.transport.connections import drop, has_nodes, leave, node_of, pooled
from django_delayq.transport.errors import (
    LOST,
    astray,
    is_demoted,
    mark_unsent,
    of_those_behind,
    unhidden,
)
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.plain_command import Command
from django_delayq.transport.recovery import Again, Outcome, Tries, recover
from django_delayq.transport.run import make, run

T = TypeVar("T")


#: Calls of a stream that may be under way at once.
UNDER_WAY = 2


def run_all(
    client: Redis, calls: Sequence[Call[T] | Command[T]]
) -> list[T | Exception]:
    """Make several calls in one pipeline, once. They are not atomic together. An error takes the place of its reply.

    Raises:
        redis.exceptions.ConnectionError: no server has answered, or the only one has not.
    """
    if not calls:
        return []
    results = make(client, Exchange(calls, is_one=False, repeats=False))
    lost = [result for result in results if isinstance(result, LOST)]
    if lost and (len(lost) == len(results) or not has_nodes(client)):
        raise lost[0]
    return results


class Behind(msgspec.Struct, frozen=True):
    """Commands to send once on each connection that has carried calls, behind the last of them."""

    #: Makes them from that last call, whose keys lie at the same server.
    commands: Callable[[Call[Any]], Sequence[Command[Any]]]


def run_stream(
    client: Redis,
    calls: Iterable[Call[T] | Behind | None],
    elsewhere: Callable[[Call[T]], T] | None = None,
) -> Iterator[T | Exception]:
    """Make calls one after the other, and prepare the next while the server works on the last.

    Where None comes in place of a call, all replies are yielded before the next call is prepared.

    The client has a connection of its own, or one to each node of a cluster. An error takes the place of its reply. A
    lost connection ends the stream, and so does a server that says that it is a replica; the replies that come on others
    are yielded before. ``elsewhere`` makes a call on another connection that the server did not run; by default it is
    just made. If the source of the calls
    forks, the connections stay the parent's, and for the child they are lost.
    """
    stream = _Stream(client, elsewhere)
    try:
        for call in calls:
            if isinstance(call, Behind):
                # A call that was not run is made again before what comes behind it.
                while stream.under_way:
                    yield stream.read()
                stream.send_behind(call)
            elif call is not None:
                stream.send(call)
            most = 0 if call is None or stream.has_failed else UNDER_WAY
            while len(stream.under_way) > most:
                yield stream.read()
            if stream.has_failed:
                break
        while stream.under_way:
            yield stream.read()
    except BaseException:
        # The source of the calls failed, or the reader went away: replies are still to come.
        stream.disconnect()
        raise


@dataclass(slots=True)
class _Sent:
    """A call that is under way, or that could not be sent."""

    call: "Call[Any] | Command[Any]"
    #: None: no node is known to hold its keys.
    connection: Any
    #: Why it was not sent.
    error: Exception | None = None


class _Stream:
    """The calls of a `run_stream` that are under way."""

    def __init__(
        self, client: Redis, elsewhere: Callable[[Call[Any]], Any] | None
    ) -> None:
        self._client = client
        self._elsewhere = elsewhere or self._run_pooled
        self._pid = os.getpid()
        self.under_way: deque[_Sent] = deque()
        #: Connections that were opened, or that an interrupt has left half open.
        self._opened: list[Any] = []
        #: The last call on each connection.
        self._last: dict[Any, Call[Any]] = {}
        #: Connections that are lost, with the errors of all calls that are under way on them.
        self._lost: dict[Any, Exception] = {}
        #: Whether nothing more is sent.
        self.has_failed = False

    def send(self, call: Call[Any]) -> None:
        sent = _Sent(call, None)
        self.under_way.append(sent)
        try:
            _check_owner(self._pid)
            node = node_of(self._client, next(iter(call.keys), None))
            if node.connection not in self._last:
                self._opened.append(node.connection)
                _open(node.connection)
        except (ClusterDownError, *LOST) as error:
            # Nothing was sent.
            mark_unsent(error)
            sent.error = error
            self.has_failed = True
        else:
            sent.connection = node.connection
            self._last[sent.connection] = call
            self._write(sent)

    def send_behind(self, behind: Behind) -> None:
        for connection, last in self._last.items():
            for command in behind.commands(last):
                sent = _Sent(command, connection)
                self.under_way.append(sent)
                self._write(sent)

    def _write(self, sent: _Sent) -> None:
        if sent.connection in self._lost:
            # Else it would be opened anew, for a reply that nobody reads.
            return
        try:
            _check_owner(self._pid)
            # No PING of ``health_check_interval``: it would read the reply to a call before it.
            sent.connection.send_command(*sent.call.command(), check_health=False)
        except LOST as error:
            self._lose(sent.connection, error)

    def read(self) -> Any:
        """Return the next reply, or the error in its place."""
        sent = self.under_way.popleft()
        told, call = sent.error or self._told(sent.connection), sent.call
        if not isinstance(told, Exception) and (told is not None or call.full is None):
            return call.read(told)
        if isinstance(call, Command):
            return astray(told) or told
        if sent.error is None and sent.connection not in self._lost:
            now_ms = boottime_ms()
            step = recover(
                Exchange((call,)),
                Outcome([told], now_ms),
                Tries(now_ms, getattr(self._client, "patience_s", None)),
            )
            if isinstance(step, Again):
                return self._make_elsewhere(call)
        return told

    def _told(self, connection: Any) -> Any:
        """Wait for what the server says next, or return the error of the connection."""
        if (lost := self._lost.get(connection)) is not None:
            return lost
        try:
            _check_owner(self._pid)
            return connection.read_response()
        except ResponseError as error:
            told = unhidden(error)
            if not is_demoted(told):
                return told
            leave(connection)
            return self._lose(connection, told)
        except LOST as error:
            return self._lose(connection, error)

    def _make_elsewhere(self, call: Call[Any]) -> Any:
        try:
            return self._elsewhere(call)
        except LOST as error:
            self.has_failed = True
            return error
        except RedisError as error:
            return error

    def _run_pooled(self, call: Call[Any]) -> Any:
        return run(pooled(self._client), call)

    def _lose(self, connection: Any, error: Exception) -> Exception:
        connection.disconnect()
        self._lost[connection] = of_those_behind(error)
        self.has_failed = True
        return error

    def disconnect(self) -> None:
        """Drop all connections, with the replies that are still to come."""
        for connection in self._opened:
            drop(connection)


def _open(connection: Any) -> None:
    """Open a connection, also one that the server has closed while nobody used it."""
    try:
        is_stale = connection._sock is not None and connection.can_read(timeout=0)
    except LOST:
        is_stale = True
    if is_stale:
        connection.disconnect()
    if connection._sock is None:
        connection.connect()


def _check_owner(pid: int) -> None:
    """Raise the error of a lost connection in a child of the process that the connection belongs to.

    The child would read the parent's replies, and its calls would mix with the parent's.
    """
    if os.getpid() != pid:
        raise RedisConnectionError(
            "this process was forked while the calls were made; their replies belong to its parent"
        )
