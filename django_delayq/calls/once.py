"""Calls that must not be repeated: they are sent once, and an error says whether they may have run."""

import asyncio
from typing import Any

import msgspec
from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.calls.call import Call
from django_delayq.calls.command import Command
from django_delayq.calls.connections import alent, has_nodes, lent
from django_delayq.calls.errors import LOST, Demoted, may_have_run
from django_delayq.calls.running import aexecute, execute
from django_delayq.exceptions import MaybeScheduled


class Once(msgspec.Struct, frozen=True):
    """A call that must not be repeated."""

    call: Call[Any] | Command[Any]

    def do(self, client: Redis) -> Any:
        return send_once(client, self.call)

    async def ado(self, client: aio.Redis) -> Any:
        return await asend_once(client, self.call)


def send_once(client: Redis, call: Call[Any] | Command[Any]) -> Any:
    """Make a call that must not be repeated.

    Raises:
        MaybeScheduled: the call was sent, and no reply came.
        redis.exceptions.RedisError: the call was not sent, or the server refused it.
    """
    if has_nodes(client):
        return _send_to_cluster(client, call)
    try:
        return _send_once(client, call)
    except Demoted:
        # The server ran nothing. The next connection leads to its successor.
        return _send_once(client, call)


def _send_once(client: Redis, call: Call[Any] | Command[Any]) -> Any:
    with lent(client.connection_pool) as connection:
        try:
            reply = _ask(connection, call.command())
        except NoScriptError:
            assert isinstance(call, Call)
            reply = _ask(connection, call.full_command())
    return call.read(reply)


def _send_to_cluster(client: Redis, call: Call[Any] | Command[Any]) -> Any:
    # The cluster's client follows redirections: a node that redirects a call did not run it. Its pools notice a
    # connection that the node has closed, which a thread's own does not before the call is lost.
    client = client.pooled()  # type: ignore[attr-defined]
    try:
        try:
            return call.read(execute(client, call.command()))
        except NoScriptError:
            assert isinstance(call, Call)
            return call.read(execute(client, call.full_command()))
    except LOST as error:
        if not may_have_run(error):
            raise
        raise _maybe_scheduled(error) from error


def _ask(connection: Any, command: tuple[Any, ...]) -> Any:
    try:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    except (BusyLoadingError, AuthenticationError, Demoted):
        raise
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise _maybe_scheduled(error) from error


async def asend_once(client: aio.Redis, call: Call[Any] | Command[Any]) -> Any:
    """`send_once` on an asyncio client."""
    # The event loop learns of a closed connection by polling and acts on it in its next round. Without these two
    # rounds the pool would lend a connection that died long ago, and a call that was never sent would count as a maybe.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if has_nodes(client):
        return await _asend_to_cluster(client, call)
    try:
        return await _asend_once(client, call)
    except Demoted:
        return await _asend_once(client, call)


async def _asend_once(client: aio.Redis, call: Call[Any] | Command[Any]) -> Any:
    async with alent(client.connection_pool) as connection:
        try:
            reply = await _aask(connection, call.command())
        except NoScriptError:
            assert isinstance(call, Call)
            reply = await _aask(connection, call.full_command())
    return call.read(reply)


async def _asend_to_cluster(client: aio.Redis, call: Call[Any] | Command[Any]) -> Any:
    try:
        try:
            return call.read(await aexecute(client, call.command()))
        except NoScriptError:
            assert isinstance(call, Call)
            return call.read(await aexecute(client, call.full_command()))
    except LOST as error:
        if not may_have_run(error):
            raise
        raise _maybe_scheduled(error) from error


async def _aask(connection: Any, command: tuple[Any, ...]) -> Any:
    try:
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)
    except (BusyLoadingError, AuthenticationError, Demoted):
        raise
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise _maybe_scheduled(error) from error


def _maybe_scheduled(error: Exception) -> MaybeScheduled:
    return MaybeScheduled(
        "the connection broke after the element was sent and before the reply; it may be in the queue,"
        f" and was not sent again: {error}"
    )
