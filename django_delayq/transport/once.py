"""Calls that must not be repeated: they are sent once, and an error says whether they may have run."""

import asyncio
from typing import Any, NoReturn

import msgspec
from redis import asyncio as aio
from redis.client import Redis

from django_delayq.exceptions import MaybeScheduled
from django_delayq.transport.call import Call
from django_delayq.transport.errors import LOST, may_have_run
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import amake, make


class Once(msgspec.Struct, frozen=True):
    """A call that must not be repeated.

    Raises:
        MaybeScheduled: the call was sent, and no reply came.
        redis.exceptions.RedisError: the call was not sent, or the server refused it.
    """

    call: Call[Any] | Command[Any]

    def do(self, client: Redis) -> Any:
        try:
            return make(client, self._exchange)[0]
        except LOST as error:
            _explain(error)

    async def ado(self, client: aio.Redis) -> Any:
        # The event loop learns of a closed connection by polling and acts on it in its next round. Without these two
        # rounds the pool would lend a connection that died long ago, and a call that was never sent would count as a
        # maybe.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        try:
            return (await amake(client, self._exchange))[0]
        except LOST as error:
            _explain(error)

    @property
    def _exchange(self) -> Exchange:
        return Exchange((self.call,), repeats=False)


def _explain(error: Exception) -> NoReturn:
    if not may_have_run(error):
        raise error
    raise MaybeScheduled(
        "the connection broke after the element was sent and before the reply; it may be in the queue,"
        f" and was not sent again: {error}"
    ) from error
