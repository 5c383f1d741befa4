"""A plain command, described without I/O as a `Call` is."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.calls.call import Argument, identity, texts
from django_delayq.calls.running import aexecute, execute
from django_delayq.redaction import brief

T = TypeVar("T")


@brief
class Command(msgspec.Struct, Generic[T], frozen=True):
    """A plain command that may be sent twice, unless it is in a `Once`."""

    args: tuple[Argument, ...]
    read: Callable[[Any], T] = identity

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, which comes second in every command that has one."""
        return (str(self.args[1]),)

    def command(self) -> tuple[bytes | str, ...]:
        return tuple(texts(self.args))

    def do(self, client: Redis) -> T:
        try:
            reply = execute(client, self.command())
        except RedisConnectionError:
            # The pool lent a connection that had died unnoticed.
            reply = execute(client, self.command())
        return self.read(reply)

    async def ado(self, client: aio.Redis) -> T:
        try:
            reply = await aexecute(client, self.command())
        except RedisConnectionError:
            reply = await aexecute(client, self.command())
        return self.read(reply)
