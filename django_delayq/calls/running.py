"""Making one call, on a sync or an asyncio client, and making it again when the reply was lost and that is safe."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.client import Redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.connections import alent, ask, lent
from django_delayq.calls.errors import (
    LOST,
    MAY_HAVE_RUN,
    may_have_run,
    raise_hidden,
)
from django_delayq.clock import boottime_ms

T = TypeVar("T")


#: Waits before a call is made again, s. A lost connection shows at once; a silent server has already cost a time-out,
#: so only the first of these follows it. None is longer, because Sentinels may name another primary meanwhile.
PAUSES_S = (0.05, 0.2, 0.25, 0.25)


def run(client: Redis, call: Call[T]) -> T:
    """Make one call, and make it again if its reply was lost and that is safe.

    The client must not retry by itself. Other errors of the server pass through; `may_have_run` says what they mean.
    """
    first_ms = boottime_ms()
    try:
        return _run(client, call)
    except LOST as error:
        repeats = Repeats(call, first_ms, error)
    for pause_s in repeats.pauses_s():
        time.sleep(pause_s)
        try:
            return _run(client, repeats.call)
        except LOST as error:
            repeats.note(error)
        except RedisError as error:
            repeats.note(error)
            raise
    raise repeats.lost


def _run(client: Redis, call: Call[T]) -> T:
    try:
        try:
            reply = execute(client, call.command())
        except NoScriptError:
            reply = execute(client, call.full_command())
    except ResponseError as error:
        raise_hidden(error)
        raise
    if reply is None and call.full is not None:
        return _run(client, call.full())
    return call.read(reply)


def execute(client: Redis, command: tuple[Argument, ...]) -> Any:
    """Send a command once, and return its reply. `may_have_run` tells what an error means."""
    # A client of `Clients.of_thread` has a connection of its own: a pool's bookkeeping would cost as much as the call.
    if (connection := client.connection) is not None:
        return ask(connection, command)
    if (pool := client.connection_pool) is None:
        return client.execute_command(*command)
    # Not execute_command(): its error does not say whether the connection failed before anything was sent.
    with lent(pool) as connection:
        return ask(connection, command)


async def arun(client: AsyncRedis, call: Call[T]) -> T:
    """`run` on an asyncio client."""
    first_ms = boottime_ms()
    try:
        return await _arun(client, call)
    except LOST as error:
        repeats = Repeats(call, first_ms, error)
    for pause_s in repeats.pauses_s():
        await asyncio.sleep(pause_s)
        try:
            return await _arun(client, repeats.call)
        except LOST as error:
            repeats.note(error)
        except RedisError as error:
            repeats.note(error)
            raise
    raise repeats.lost


async def _arun(client: AsyncRedis, call: Call[T]) -> T:
    try:
        try:
            reply = await aexecute(client, call.command())
        except NoScriptError:
            reply = await aexecute(client, call.full_command())
    except ResponseError as error:
        raise_hidden(error)
        raise
    if reply is None and call.full is not None:
        return await _arun(client, call.full())
    return call.read(reply)


async def aexecute(client: AsyncRedis, command: tuple[Argument, ...]) -> Any:
    """`execute` on an asyncio client."""
    if (pool := client.connection_pool) is None or client.connection is not None:
        return await client.execute_command(*command)
    async with alent(pool) as connection:
        await connection.send_command(*command)
        return await connection.read_response()


class Repeats(Generic[T]):
    """The repeats of a call whose reply was lost: when to make them, and what the last error says about all of them."""

    def __init__(self, call: Call[T], first_ms: float, lost: Exception) -> None:
        if call.repeat is None:
            raise lost
        self._call = call
        self._first_ms = first_ms
        #: Whether an earlier try may have run.
        self.may_have_run = False
        self.lost = lost
        self.note(lost)

    def pauses_s(self) -> Iterator[float]:
        """Yield the wait before each repeat. Stop when the server could no longer recognise a repeat."""
        if isinstance(self.lost, AuthenticationError | AuthorizationError):
            return
        for pause_s in _pauses(self.lost):
            passed_ms = boottime_ms() + pause_s * 1000 - self._first_ms
            if self.may_have_run and passed_ms > self._call.window_ms:
                self.lost.add_note(
                    f"django-delayq: not repeated: the server recognises a repeat for {self._call.window_ms / 1000:g} s"
                    f" only, and {passed_ms / 1000:.1f} s have passed"
                )
                return
            yield pause_s

    @property
    def call(self) -> Call[T]:
        """What to send: marked as a repeat only if an earlier try may have run."""
        return self._call.again() if self.may_have_run else self._call

    def note(self, error: Exception) -> None:
        """Note the error of a try. An earlier try may have run, whatever the last error says."""
        self.lost = error
        if self.may_have_run and not isinstance(error, OutOfMemoryError):
            # A full server refuses to store, so the repeat did not find it stored.
            setattr(error, MAY_HAVE_RUN, True)
        self.may_have_run = may_have_run(error)


def _pauses(error: Exception) -> tuple[float, ...]:
    return PAUSES_S[:1] if isinstance(error, RedisTimeoutError) else PAUSES_S
