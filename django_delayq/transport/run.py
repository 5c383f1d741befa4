"""Sending exchanges, on a sync or an asyncio client, as often as `recover` says."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.client import Redis

from django_delayq.clock import boottime_ms
from django_delayq.transport.call import Argument, Call
from django_delayq.transport.connections import (
    aconverse,
    alent,
    ask,
    converse,
    has_nodes,
    lent,
)
from django_delayq.transport.errors import FAILED, unhidden
from django_delayq.transport.exchange import Exchange, Where
from django_delayq.transport.plain_command import Command
from django_delayq.transport.recovery import Again, Outcome, Raise, Tries, recover

T = TypeVar("T")


def run(client: Redis, call: Call[T] | Command[T]) -> T:
    """Make one call, and make it again if its reply was lost and that is safe.

    The client must not retry by itself. Other errors of the server pass through; `may_have_run` says what they mean.
    """
    # The client of a thread has a connection of its own, and nearly all calls are made on that.
    if client.connection is None and has_nodes(client):
        return make(client, Exchange((call,)))[0]  # type: ignore[no-any-return]
    began_ms = boottime_ms()
    try:
        reply = execute(client, call.command())
    except FAILED as error:
        replies: list[Any] = [unhidden(error)]
    else:
        if reply is not None or call.full is None:
            return call.read(reply)
        replies = [reply]
    outcome = Outcome(replies, boottime_ms())
    return recovered(client, Exchange((call,)), outcome, began_ms)[0]  # type: ignore[no-any-return]


def execute(client: Redis, command: tuple[Argument, ...]) -> Any:
    """Send a command once, and return its reply. `may_have_run` returns what an error means."""
    # A client of `Clients.of_thread` has a connection of its own: a pool's bookkeeping would cost as much as the call.
    if (connection := client.connection) is not None:
        return ask(connection, command)
    # Not execute_command(): its error does not say whether the connection failed before anything was sent.
    with lent(client.connection_pool) as connection:
        return ask(connection, command)


def make(client: Redis, exchange: Exchange) -> list[Any]:
    """Send an exchange and return the results of its calls.

    Raises:
        redis.exceptions.RedisError: its first call failed, unless each of its calls is on its own.
    """
    began_ms = boottime_ms()
    outcome = send(client, exchange)
    if (results := _results(exchange, outcome)) is not None:
        return results
    return recovered(client, exchange, outcome, began_ms)


def send(
    client: Redis, exchange: Exchange, where: Sequence[Where | None] = ()
) -> Outcome:
    """Send an exchange once."""
    if has_nodes(client):
        return client.send(exchange, where)  # type: ignore[attr-defined, no-any-return]
    commands = [call.command() for call in exchange.calls]
    is_own = exchange.repeats and len(commands) == 1
    return Outcome(converse(client, commands, is_own=is_own), boottime_ms())


def recovered(
    client: Redis, exchange: Exchange, outcome: Outcome, began_ms: float
) -> list[Any]:
    """Do with an exchange what is left to do after its first try."""
    patience_s = getattr(client, "patience_s", None)
    return go_on(partial(send, client), exchange, outcome, Tries(began_ms, patience_s))


def go_on(
    send: Callable[[Exchange, Sequence[Where | None]], Outcome],
    exchange: Exchange,
    outcome: Outcome,
    tries: Tries,
) -> list[Any]:
    """Do as `recover` says until an exchange has ended."""
    while True:
        step = recover(exchange, outcome, tries)
        # An error that its own frames hold would keep their connections until the collector comes.
        outcome.replies.clear()
        if isinstance(step, Raise):
            try:
                raise step.error
            finally:
                del step
        if not isinstance(step, Again):
            return step.results
        time.sleep(step.after_s)
        exchange, tries = step.exchange, step.tries
        outcome = send(exchange, step.where)


def _results(exchange: Exchange, outcome: Outcome) -> list[Any] | None:
    """Return the results if all is as usual, without a look at what else it might be."""
    replies = outcome.replies
    if any(reply is None or isinstance(reply, Exception) for reply in replies):
        return None
    return [
        call.read(reply) for call, reply in zip(exchange.calls, replies, strict=True)
    ]


async def arun(client: AsyncRedis, call: Call[T] | Command[T]) -> T:
    """`run` on an asyncio client."""
    if has_nodes(client):
        return (await amake(client, Exchange((call,))))[0]  # type: ignore[no-any-return]
    began_ms = boottime_ms()
    try:
        reply = await aexecute(client, call.command())
    except FAILED as error:
        replies: list[Any] = [unhidden(error)]
    else:
        if reply is not None or call.full is None:
            return call.read(reply)
        replies = [reply]
    outcome = Outcome(replies, boottime_ms())
    return (await arecovered(client, Exchange((call,)), outcome, began_ms))[0]  # type: ignore[no-any-return]


async def aexecute(client: AsyncRedis, command: tuple[Argument, ...]) -> Any:
    """`execute` on an asyncio client."""
    async with alent(client.connection_pool) as connection:
        await connection.send_command(*command)
        return await connection.read_response()


async def amake(client: AsyncRedis, exchange: Exchange) -> list[Any]:
    """`make` on an asyncio client."""
    began_ms = boottime_ms()
    outcome = await asend(client, exchange)
    if (results := _results(exchange, outcome)) is not None:
        return results
    return await arecovered(client, exchange, outcome, began_ms)


async def asend(
    client: AsyncRedis, exchange: Exchange, where: Sequence[Where | None] = ()
) -> Outcome:
    """`send` on an asyncio client."""
    if has_nodes(client):
        return await client.send(exchange, where)  # type: ignore[attr-defined, no-any-return]
    commands = [call.command() for call in exchange.calls]
    return Outcome(await aconverse(client, commands), boottime_ms())


async def arecovered(
    client: AsyncRedis, exchange: Exchange, outcome: Outcome, began_ms: float
) -> list[Any]:
    """`recovered` on an asyncio client."""
    tries = Tries(began_ms, getattr(client, "patience_s", None))
    while True:
        step = recover(exchange, outcome, tries)
        # An error that its own frames hold would keep their connections until the collector comes.
        outcome.replies.clear()
        if isinstance(step, Raise):
            try:
                raise step.error
            finally:
                del step
        if not isinstance(step, Again):
            return step.results
        await asyncio.sleep(step.after_s)
        exchange, tries = step.exchange, step.tries
        outcome = await asend(client, exchange, step.where)
