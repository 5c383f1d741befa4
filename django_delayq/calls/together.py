"""Performing many operations at once: in each round, the next calls of all of them share one write.

The operations stay separate: each call is atomic by itself, and an error ends only the operation that it belongs to.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from django_delayq.calls.call import Argument, Call
from django_delayq.calls.connections import alent, lent
from django_delayq.calls.errors import LOST, of_those_behind, unhidden
from django_delayq.calls.running import Repeats
from django_delayq.calls.steps import Pause, Steps
from django_delayq.clock import boottime_ms
from django_delayq.redaction import brief

T = TypeVar("T")


@brief
class Exchange(msgspec.Struct, frozen=True):
    """Send commands in one write and read their replies. An error takes the place of a reply."""

    commands: Sequence[tuple[Argument, ...]]

    def do(self, client: Redis) -> list[Any]:
        if (pool := client.connection_pool) is None:
            return client.exchange(self.commands)
        replies: list[Any] = []
        is_lent = False
        try:
            with lent(pool) as connection:
                is_lent = True
                connection.send_packed_command(connection.pack_commands(self.commands))
                while len(replies) < len(self.commands):
                    try:
                        replies.append(connection.read_response())
                    except ResponseError as error:
                        replies.append(unhidden(error))
        except LOST as error:
            self._lose(replies, error, is_lent)
        return replies

    async def ado(self, client: aio.Redis) -> list[Any]:
        if (pool := client.connection_pool) is None:
            return await client.exchange(self.commands)
        replies: list[Any] = []
        is_lent = False
        try:
            async with alent(pool) as connection:
                is_lent = True
                packed = connection.pack_commands(self.commands)
                await connection.send_packed_command(packed)
                while len(replies) < len(self.commands):
                    try:
                        replies.append(await connection.read_response())
                    except ResponseError as error:
                        replies.append(unhidden(error))
        except LOST as error:
            self._lose(replies, error, is_lent)
        return replies

    def _lose(self, replies: list[Any], error: Exception, is_lent: bool) -> None:
        replies.append(error)
        behind = of_those_behind(error) if is_lent else error
        replies += [behind] * (len(self.commands) - len(replies))


def together(operations: Sequence[Steps[T]]) -> Steps[list[T | Exception]]:
    """Perform operations at once, and return the result of each, or the server's or the connection's error.

    The operations ask for nothing but calls that may be repeated.
    """
    results: list[Any] = [None] * len(operations)
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while True:
        calls: dict[int, Call[Any]] = {}
        for i, reply in replies.items():
            operation = operations[i]
            try:
                if isinstance(reply, Exception):
                    request = operation.throw(reply)
                else:
                    request = operation.send(reply)
            except StopIteration as stop:
                results[i] = stop.value
            except RedisError as error:
                results[i] = error
            else:
                assert isinstance(request, Call)
                calls[i] = request
        if not calls:
            return results
        made = yield from _make(list(calls.values()))
        replies = dict(zip(calls, made, strict=True))


def _make(calls: Sequence[Call[Any]]) -> Steps[list[Any]]:
    """Make calls, and make those again whose replies were lost."""
    first_ms = boottime_ms()
    replies = yield from _exchange(calls)
    lost = _lost(replies)
    if lost:
        repeats = Repeats(calls[lost[0]], first_ms, replies[lost[0]])
        for pause_s in repeats.pauses_s():
            yield Pause(1000 * pause_s)
            again = [
                calls[i].again() if repeats.may_have_run else calls[i] for i in lost
            ]
            for i, reply in zip(lost, (yield from _exchange(again)), strict=True):
                replies[i] = reply
                if isinstance(reply, RedisError):
                    repeats.note(reply)
            lost = _lost(replies)
            if not lost:
                break
    return [
        reply if isinstance(reply, Exception) else call.read(reply)
        for call, reply in zip(calls, replies, strict=True)
    ]


def _lost(replies: Sequence[Any]) -> list[int]:
    return [i for i, reply in enumerate(replies) if isinstance(reply, LOST)]


def _exchange(calls: Sequence[Call[Any]]) -> Steps[list[Any]]:
    replies: list[Any] = yield Exchange([call.command() for call in calls])
    # NOSCRIPT means that the call did not run. The first call brings the script for the others, but for those that go to
    # another node of a cluster: these bring it as well.
    for is_each_whole in (False, True):
        unknown = [
            i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)
        ]
        if not unknown:
            break
        seen: set[str] = set()
        commands = []
        for i in unknown:
            sha = calls[i].script.sha
            is_whole = is_each_whole or sha not in seen
            commands.append(calls[i].full_command() if is_whole else calls[i].command())
            seen.add(sha)
        for i, reply in zip(unknown, (yield Exchange(commands)), strict=True):
            replies[i] = reply
    return replies
