"""A plain command, described without I/O as a `Call` is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq.calls.call import Argument, identity

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """A plain command, harmless to repeat unless it is a `Once`; the key comes second."""

    args: tuple[bytes | str | int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return (str(self.args[1]),)

    def command(self) -> tuple[bytes | str | int, ...]:
        return self.args

    def read(self, reply: Any) -> Any:
        return reply

    def do(self, client: Redis) -> Any:
        execute: Any = client.execute_command
        try:
            return execute(*self.args)
        except RedisConnectionError:
            # The pool had lent a connection that died unnoticed.
            return execute(*self.args)

    async def ado(self, client: aio.Redis) -> Any:
        execute: Any = client.execute_command
        try:
            return await execute(*self.args)
        except RedisConnectionError:
            return await execute(*self.args)


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A command that is no script, for a `Line`."""

    words: tuple[Argument, ...]
    read: Callable[[Any], T] = identity

    def command(self) -> tuple[Argument, ...]:
        return self.words
