"""A plain command, described without I/O as a `Call` is."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from django_delayq.redaction import brief
from django_delayq.transport.call import Argument, identity, texts

T = TypeVar("T")


@brief
class Command(msgspec.Struct, Generic[T], frozen=True):
    """A plain command that may be sent twice, unless it is in a `Once`."""

    args: tuple[Argument, ...]
    read: Callable[[Any], T] = identity

    # It is repeated as it is, at any time.
    repeat: ClassVar[Mapping[int, Argument]] = {}
    window_ms: ClassVar[float] = math.inf
    full: ClassVar[None] = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, which comes second in every command that has one."""
        return (str(self.args[1]),)

    def command(self) -> tuple[bytes | str, ...]:
        return tuple(texts(self.args))

    def again(self) -> "Command[T]":
        return self


def fields_of(reply: Sequence[bytes] | dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Read the reply to HGETALL: a map in RESP3, names and values in turn in RESP2."""
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))
