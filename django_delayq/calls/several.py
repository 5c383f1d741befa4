"""Making several calls: in one pipeline, or as a stream, where the next call is prepared while the server works."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from redis.client import Redis
from redis.exceptions import ClusterDownError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.command import Command
from django_delayq.calls.connections import drop, has_nodes, node_of
from django_delayq.calls.errors import (
    LOST,
    REDIRECTIONS,
    mark_unsent,
    of_those_behind,
    unhidden,
)
from django_delayq.calls.running import run
from django_delayq.calls.together import Exchange

T = TypeVar("T")


#: Calls of a stream that may be under way at once.
UNDER_WAY = 2


def run_all(client: Redis, calls: Sequence[Call[T]]) -> list[T | Exception]:
    """Make several calls in one pipeline, once. They are not atomic together. An error takes the place of its reply."""
    replies = _exchange(client, [call.command() for call in calls])
    unknown = _unknown(replies)
    if unknown:
        # NOSCRIPT means that the call did not run: those calls, and only those, are sent again.
        for i, reply in zip(
            unknown,
            _exchange(client, [calls[i].full_command() for i in unknown]),
            strict=True,
        ):
            replies[i] = reply
    return _read_all(calls, replies)


def _exchange(client: Redis, commands: list[tuple[Argument, ...]]) -> list[Any]:
    """Return the replies. Raise the error of the connection if no server has answered, or the only one has not."""
    if not commands:
        return []
    replies = Exchange(commands).do(client)
    lost = [reply for reply in replies if isinstance(reply, LOST)]
    if lost and (len(lost) == len(replies) or not has_nodes(client)):
        raise lost[0]
    return replies


def _unknown(replies: Sequence[Any]) -> list[int]:
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _read_all(calls: Sequence[Call[T]], replies: Sequence[Any]) -> list[T | Exception]:
    read: list[T | Exception] = []
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, ResponseError):
            reply = unhidden(reply)
        read.append(reply if isinstance(reply, Exception) else call.read(reply))
    return read


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
    lost connection ends the stream; the replies that come on others are yielded before. ``elsewhere`` makes a call anew
    that a node did not run, because it has the slot no more; by default it is just made. If the source of the calls
    forks, the connections stay the parent's, and for the child they are lost.
    """
    stream = _Stream(client, elsewhere)
    try:
        for call in calls:
            if isinstance(call, Behind):
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


#: In the place of a reply that was not read yet.
_UNREAD = object()


@dataclass(slots=True)
class _Sent:
    """A call that is under way, or that could not be sent."""

    call: "Call[Any] | Command[Any]"
    #: None: no node is known to hold its keys.
    connection: Any
    #: A reply, or an error.
    told: Any = _UNREAD


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
            sent.told = error
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
        told = self._told(sent)
        call = sent.call
        if isinstance(call, Call):
            if isinstance(told, NoScriptError):
                told = self._told_with_script(sent, call)
            if (
                isinstance(told, REDIRECTIONS)
                and sent.connection is not None
                and has_nodes(self._client)
            ):
                return self._make_elsewhere(call)
        elif isinstance(told, REDIRECTIONS):
            return RedisConnectionError(
                f"the slot moved meanwhile, so this was not run where the calls before it were: {told}"
            )
        if isinstance(told, ResponseError):
            return unhidden(told)
        return told if isinstance(told, Exception) else call.read(told)

    def _told(self, sent: _Sent) -> Any:
        """Wait for what the server says, or return the error of the connection."""
        if sent.told is not _UNREAD:
            return sent.told
        if (error := self._lost.get(sent.connection)) is not None:
            return error
        try:
            _check_owner(self._pid)
            return sent.connection.read_response()
        except ResponseError as error:
            return error
        except LOST as error:
            return self._lose(sent.connection, error)

    def _told_with_script(self, unknown: _Sent, call: Call[Any]) -> Any:
        """Make a call anew of which the server did not know the script; replies that come first are kept."""
        behind = []
        for sent in self.under_way:
            if sent.connection is unknown.connection:
                sent.told = self._told(sent)
                if isinstance(sent.call, Command):
                    behind.append(sent)
        whole = _Sent(Command(call.full_command()), unknown.connection)
        self._write(whole)
        told = self._told(whole)
        # What has waited for the calls before it has not waited for this one.
        for sent in behind:
            sent.told = _UNREAD
            self._write(sent)
        return told

    def _make_elsewhere(self, call: Call[Any]) -> Any:
        try:
            return self._elsewhere(call)
        except LOST as error:
            self.has_failed = True
            return error
        except RedisError as error:
            return error

    def _run_pooled(self, call: Call[Any]) -> Any:
        return run(self._client.pooled(), call)  # type: ignore[attr-defined]

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
