"""Operations of several requests, written once without I/O and performed by a sync or an async client.

An operation is a generator: it yields what it wants done, is sent the result, or has the error thrown into it, and
returns its own result. An interrupt of the caller is thrown in like any error, so that the operation can clean
up with a few more requests.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.calls.call import Call, arun, run
from django_delayq.queues.connection import Command, asend_once, send_once
from django_delayq.waiting.lists import Peeks, await_any, wait_for_any

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Once:
    """A call that must not be repeated."""

    call: Call[Any] | Command


@dataclass(frozen=True, slots=True)
class WaitForAny:
    """Wait until one of some lists holds something, or for so long; for some 2 s at most."""

    keys: tuple[str, ...]
    wait_ms: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for so long."""

    wait_ms: float


Request = Call[Any] | Command | Once | WaitForAny | Pause
Steps = Generator[Request, Any, T]


def perform(client: Redis, steps: Steps[T], peeks: Peeks | None = None) -> T:
    """Do what an operation asks for; ``peeks`` are needed by one that waits."""
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
            result = _do(client, request, peeks)
        except BaseException as raised:
            error = raised


def _do(client: Redis, request: Request, peeks: Peeks | None) -> Any:
    if isinstance(request, Call):
        return run(client, request)
    if isinstance(request, Command):
        execute: Any = client.execute_command
        try:
            return execute(*request.args)
        except RedisConnectionError:
            # The pool had lent a connection that died unnoticed.
            return execute(*request.args)
    if isinstance(request, Once):
        return send_once(client, request.call)
    if isinstance(request, WaitForAny):
        assert peeks is not None
        return wait_for_any(client, peeks, request.keys, request.wait_ms)
    return wait_for_any(client, Peeks(), (), request.wait_ms)


async def aperform(client: aio.Redis, steps: Steps[T]) -> T:
    """`perform` on an asyncio client.

    Once the task was cancelled, what is left to do is done beside it: a second cancellation does not stop it.
    """
    result: Any = None
    error: BaseException | None = None
    is_cancelled = False
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    while True:
        try:
            request = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            returned: T = stop.value
            return returned
        result = error = None
        try:
            if is_cancelled:
                result = await _shielded(client, request)
            else:
                result = await _ado(client, request)
                if task.cancelling() > cancellations:
                    # asyncio.wait_for of Python 3.11, which redis-py sends with, loses a cancellation that comes as
                    # it ends: the caller would wait on, for ever perhaps.
                    raise asyncio.CancelledError
        except BaseException as raised:
            error = raised
            is_cancelled = is_cancelled or isinstance(raised, asyncio.CancelledError)


async def _ado(client: aio.Redis, request: Request) -> Any:
    if isinstance(request, Call):
        return await arun(client, request)
    if isinstance(request, Command):
        execute: Any = client.execute_command
        try:
            return await execute(*request.args)
        except RedisConnectionError:
            return await execute(*request.args)
    if isinstance(request, Once):
        return await asend_once(client, request.call)
    if isinstance(request, WaitForAny):
        return await await_any(client, request.keys, request.wait_ms)
    return await asyncio.sleep(request.wait_ms / 1000)


#: The event loop itself keeps only weak references to its tasks.
_cleaning: set[asyncio.Task[Any]] = set()


async def _shielded(client: aio.Redis, request: Request) -> Any:
    task = asyncio.ensure_future(_ado(client, request))
    _cleaning.add(task)
    task.add_done_callback(_cleaning.discard)
    return await asyncio.shield(task)
