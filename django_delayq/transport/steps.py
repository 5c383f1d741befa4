"""Operations of several requests, written once without I/O and performed by a sync or an async client.

An operation is a generator. It yields what it wants done, receives the result or the error, and returns its own
result. An interrupt of the caller is thrown into it like any error, so that it can clean up with a few more requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

import msgspec
from redis import asyncio as aio
from redis.client import Redis

from django_delayq.transport.call import Call
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import amake, arun, make, run

T = TypeVar("T")

_CALLS = (Call, Command)


class Request(Protocol):
    """Anything but calls that an operation wants done. It knows how to do itself on either kind of client."""

    def do(self, client: Redis) -> Any: ...

    async def ado(self, client: aio.Redis) -> Any: ...


Asked = Call[Any] | Command[Any] | Exchange | Request
Steps = Generator[Asked, Any, T]


class Pause(msgspec.Struct, frozen=True):
    """Wait."""

    wait_ms: float

    def do(self, client: Redis) -> None:
        time.sleep(self.wait_ms / 1000)

    async def ado(self, client: aio.Redis) -> None:
        await asyncio.sleep(self.wait_ms / 1000)


def perform(client: Redis | Callable[[], Redis], steps: Steps[T]) -> T:
    """Do what an operation asks for, and return its result.

    ``client`` may be a function that returns one: an operation that asks for nothing then needs no server.
    """
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            returned: T = stop.value
            return returned
        result = error = None
        try:
            if callable(client):
                client = client()
            if isinstance(request, _CALLS):
                result = run(client, request)
            elif isinstance(request, Exchange):
                result = make(client, request)
            else:
                result = request.do(client)
        except BaseException as raised:
            error = raised


async def aperform(
    client: aio.Redis | Callable[[], Awaitable[aio.Redis]],
    steps: Steps[T],
    error: BaseException | None = None,
) -> T:
    """Perform an operation as `perform` does, on an asyncio client. If it has begun, ``error`` is raised in it first.

    After a cancellation, the remaining requests run in a task of their own, which a second cancellation does not stop.
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    result: Any = None
    while True:
        try:
            request = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            returned: T = stop.value
            return returned
        result = error = None
        try:
            if callable(client):
                client = await client()
            result = await _ado(client, request)
            if task.cancelling() > cancellations:
                # redis-py sends through asyncio.wait_for, which on Python 3.11 loses a cancellation that arrives as it
                # ends. The caller would wait on, perhaps forever.
                raise asyncio.CancelledError
        except asyncio.CancelledError as cancelled:
            return await _shielded(aperform(client, steps, cancelled))
        except BaseException as raised:
            error = raised


async def _ado(client: aio.Redis, request: Asked) -> Any:
    if isinstance(request, _CALLS):
        return await arun(client, request)
    if isinstance(request, Exchange):
        return await amake(client, request)
    return await request.ado(client)


#: The event loop itself keeps only weak references to its tasks.
_cleaning: set[asyncio.Task[Any]] = set()


async def _shielded(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    _cleaning.add(task)
    task.add_done_callback(_end)
    return await asyncio.shield(task)


def _end(task: "asyncio.Task[Any]") -> None:
    _cleaning.discard(task)
    if not task.cancelled():
        task.exception()  # asyncio reports an exception that nobody has looked at
