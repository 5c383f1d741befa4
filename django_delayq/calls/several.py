"""Making several calls: in one pipeline, or as a stream, where the next call is prepared while the server works."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.errors import LOST, unhidden

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

    The client has a connection of its own. An error takes the place of its reply. A lost connection ends the stream.
    If the source of the calls forks, the connection stays the parent's, and for the child it is lost.
    """
    connection = client.connection
    assert connection is not None
    pid = os.getpid()
    under_way: deque[Call[T]] = deque()
    failure: Exception | None = None
    try:
        for call in calls:
            if call is not None:
                try:
                    _check_owner(pid)
                    connection.send_command(*call.command())
                except LOST as error:
                    connection.disconnect()
                    failure = error
                under_way.append(call)
            most = 0 if call is None or failure is not None else UNDER_WAY
            while len(under_way) > most:
                reply, failure = _read_one(
                    connection, pid, under_way.popleft(), failure
                )
                yield reply
            if failure is not None:
                break
        while under_way:
            reply, failure = _read_one(connection, pid, under_way.popleft(), failure)
            yield reply
    except BaseException:
        # The source of the calls failed, or the reader went away: replies are still to come.
        connection.disconnect()
        raise


def _read_one(
    connection: Any, pid: int, call: Call[Any], failure: Exception | None
) -> tuple[Any, Exception | None]:
    if failure is not None:
        return failure, failure
    try:
        _check_owner(pid)
        return call.read(connection.read_response()), None
    except ResponseError as error:
        return unhidden(error), None
    except LOST as error:
        connection.disconnect()
        return error, error


def _check_owner(pid: int) -> None:
    """Raise the error of a lost connection in a child of the process that the connection belongs to.

    The child would read the parent's replies, and its calls would mix with the parent's.
    """
    if os.getpid() != pid:
        raise RedisConnectionError(
            "this process was forked while the calls were made; their replies belong to its parent"
        )
