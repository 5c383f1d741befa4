"""A connection that one thread keeps, on which it makes several calls before it waits for the first reply."""

import select
from collections import deque
from typing import Any, Generic, TypeVar

from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.transport.call import Call
from django_delayq.transport.connections import (
    arguments_of,
    borrow,
    drop,
    has_nodes,
    leave,
    node_of,
)
from django_delayq.transport.errors import (
    LOST,
    is_demoted,
    mark_of_node,
    of_those_behind,
    unhidden,
)
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.plain_command import Command
from django_delayq.transport.recovery import Outcome
from django_delayq.transport.run import recovered

T = TypeVar("T")

#: A node of a cluster that was silent for as long as its connections wait is asked again after so many times that long.
SILENT_TIMES = 3


class UnderWay(Generic[T]):
    """A call on a `Line` whose reply has not been read yet. The server works on it meanwhile."""

    def __init__(self, line: "Line", call: "Call[T] | Command[T]") -> None:
        self._line = line
        self._call = call
        #: What came: a reply, or an error of the server or of the connection.
        self._told: Any = None
        self._is_told = False

    def tell(self, reply: Any) -> None:
        self._told, self._is_told = reply, True

    def finish(self) -> T:
        """Wait for the reply and return it. Call this once.

        Raises the error of the server or of the connection, even one that came up while sending.
        """
        if not self._is_told:
            self._line.read_until(self)
        call, told = self._call, self._told
        if not isinstance(told, Exception) and (told is not None or call.full is None):
            return call.read(told)
        outcome = Outcome(
            [unhidden(told) if isinstance(told, ResponseError) else told],
            now_ms := boottime_ms(),
        )
        self._told = told = None
        # Whoever has a line repeats lost calls itself.
        exchange = Exchange((call,), repeats=False)
        return recovered(self._line.runs, exchange, outcome, now_ms)[0]  # type: ignore[no-any-return]

    @property
    def is_told(self) -> bool:
        return self._is_told


class Line:
    """A kept connection. Calls that are made before anybody waits for a reply go out in one write.

    A line belongs to one thread. If the server closes the connection while no call is under way, the next call
    reconnects. A connection error ends every call that is under way. So does the error of a server that has become a
    replica.
    """

    def __init__(self, client: Redis) -> None:
        """Take the connection from ``client``, which also makes calls again that the server did not run."""
        self.client = self.runs = client
        self._connection: Any = None
        self._poll: Any = None
        self._is_checked = False
        # Packed, and not sent yet.
        self._packed: list[bytes] = []
        self._unread: deque[UnderWay[Any]] = deque()

    def of(self, key: str) -> "Line":
        """Return the line to the server that holds a key: of a single server, this one."""
        return self

    def ask(self, call: "Call[T] | Command[T]") -> UnderWay[T]:
        """Make a call. It is sent with the others, by `flush` or by the first wait for a reply."""
        under_way = UnderWay(self, call)
        try:
            if not self._unread:
                self._make_ready()
            self._packed += self._connection.pack_command(*call.command())
            self._unread.append(under_way)
        except Exception as error:
            self._fail(error)
            if not under_way.is_told:
                under_way.tell(error)
        except BaseException:
            # An interrupt, say: replies that are still to come must not be taken for others.
            self.close()
            raise
        return under_way

    def flush(self) -> None:
        """Send the calls that were not sent yet."""
        if not self._packed:
            return
        try:
            packed, self._packed = b"".join(self._packed), []
            self._connection.send_packed_command([packed], check_health=False)
        except Exception as error:
            self._fail(error)
        except BaseException:
            self.close()
            raise

    def read_until(self, last: UnderWay[Any]) -> None:
        """Read the replies up to that of one call."""
        self.flush()
        try:
            while not last.is_told:
                try:
                    reply = self._connection.read_response()
                except ResponseError as error:
                    if is_demoted(error):
                        raise
                    reply = error
                self._unread.popleft().tell(reply)
        except Exception as error:
            self._fail(error)
        except BaseException:
            self.close()
            raise

    def rest(self) -> None:
        """Give the connection back unless a call is under way, so that other users of the client need no second one."""
        if self._connection is not None and not self._unread:
            connection, self._connection, self._poll = self._connection, None, None
            self.client.connection_pool.release(connection)

    def close(self) -> None:
        """Close the connection. Calls that are under way fail."""
        self._fail(RedisConnectionError("the connection was closed"))

    @property
    def is_stale(self) -> bool:
        """Whether the connection has bytes that nobody asked for: the server closed it, perhaps to restart."""
        return self._poll is not None and bool(self._poll.poll(0))

    def _make_ready(self) -> None:
        """Connect unless the connection is open."""
        connection = self._connection
        if connection is None:
            connection = self._connection = borrow(self.client.connection_pool)
            # That of a connection which Sentinels lead looks whether its server still is the primary.
            self._is_checked = hasattr(connection, "lead") or bool(
                connection.health_check_interval
            )
        elif self.is_stale:
            connection.disconnect()
        if connection._sock is None:
            connection.connect()
            self._poll = None
        elif self._is_checked:
            connection.check_health()
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(connection._sock.fileno(), select.POLLIN)

    def _fail(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        self._poll, self._packed = None, []
        unread, self._unread = self._unread, deque()
        if unread:
            unread.popleft().tell(error)
            behind = of_those_behind(error)
            for under_way in unread:
                under_way.tell(behind)
        if connection is not None:
            try:
                (leave if is_demoted(error) else drop)(connection)
            finally:
                self.client.connection_pool.release(connection)


class Lines(Line):
    """The lines to a cluster, one to each node: a call goes out on that of the node that holds its keys."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self._lines: dict[Redis, _NodeLine] = {}

    def of(self, key: str) -> Line:
        """Return the line to the node that holds a key. When a slot moves, its queues change lines.

        If no node is known to hold the key, return a line on which every call fails with the reason.
        """
        try:
            node = node_of(self.client, key)
        except (RedisError, OSError) as error:
            return _NoLine(self.client, error)
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = _NodeLine(node, self)
        return line

    def ask(self, call: "Call[T] | Command[T]") -> UnderWay[T]:
        return self.of(call.keys[0]).ask(call)

    def flush(self) -> None:
        for line in self._lines.values():
            line.flush()

    def rest(self) -> None:
        for line in self._lines.values():
            line.rest()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    @property
    def is_stale(self) -> bool:
        return any(line.is_stale for line in self._lines.values())


class _NodeLine(Line):
    """The line to one node. While a thread waits for its reply, the other nodes work.

    A node that hangs holds up the others for a part of the time at most: once it has been silent, calls to it fail at
    once for a while.
    """

    def __init__(self, node: Redis, lines: Lines) -> None:
        super().__init__(node)
        self.runs = lines.client
        self._lines = lines
        self._silence: Exception | None = None
        self._silent_until_ms = 0.0

    def ask(self, call: "Call[T] | Command[T]") -> UnderWay[T]:
        if self._silence is not None:
            if monotonic_ms() < self._silent_until_ms:
                self._note_silent()
                return _failed(self, call, self._silence)
            self._silence = None
        return super().ask(call)

    def read_until(self, last: UnderWay[Any]) -> None:
        self._lines.flush()
        super().read_until(last)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, LOST):
            mark_of_node(error)
            self._note_silent()
        if isinstance(error, RedisTimeoutError):
            waited_s = arguments_of(self.client).get("socket_timeout") or 0.0
            self._silence = error
            self._silent_until_ms = monotonic_ms() + 1000 * SILENT_TIMES * waited_s
        super()._fail(error)

    def _note_silent(self) -> None:
        # From then on the table of slots is read again and again, so a replica that takes over is soon found.
        self.runs.note_silent(self.client)  # type: ignore[attr-defined]


def _failed(line: Line, call: "Call[T] | Command[T]", error: Exception) -> UnderWay[T]:
    under_way = UnderWay(line, call)
    under_way.tell(error)
    return under_way


class _NoLine(Line):
    """In the place of a line while nobody knows where it should lead."""

    def __init__(self, client: Redis, error: Exception) -> None:
        super().__init__(client)
        self._error = error

    def ask(self, call: "Call[T] | Command[T]") -> UnderWay[T]:
        return _failed(self, call, self._error)


def line_of(client: Redis) -> Line:
    """Return a line to the server of a client, or to the nodes of its cluster."""
    return Lines(client) if has_nodes(client) else Line(client)
