"""One Redis operation, described without I/O: the script, its keys and arguments, and how to read the reply."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
from hiredis import pack_command
from msgspec.structs import astuple, replace
from redis.connection import HiredisRespSerializer

from django_delayq.redaction import brief
from django_delayq.transport.script import Script

T = TypeVar("T")


#: Types that redis-py writes to the wire as they are.
Argument = bytes | str | int


_NUMBERS = (int, float)


def texts(args: Sequence[Any]) -> list[Any]:
    """Return arguments with their numbers as text.

    hiredis ends the process if a signal handler raises an exception while it writes a number.
    """
    return [str(arg) if type(arg) in _NUMBERS else arg for arg in args]


def identity(reply: Any) -> Any:
    return reply


NOTHING: Mapping[int, Argument] = MappingProxyType({})


@brief
class Call(msgspec.Struct, Generic[T], frozen=True):
    """A script call, described and not made yet."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    read: Callable[[Any], T] = identity
    #: Arguments, by index, that differ when the call is made again because its reply was lost. None: a second call would
    #: do everything twice, so a lost reply is an error.
    repeat: Mapping[int, Argument] | None = NOTHING
    #: How long the script recognises a repeat; then it forgets the first call.
    window_ms: float = math.inf
    #: Makes the call of the script that handles every case. It replaces this call if the reply is nil, and in a repeat.
    full: "Callable[[], Call[T]] | None" = None

    def command(self) -> tuple[bytes | str, ...]:
        """Return what is sent: bytes and text only, see `texts`."""
        count = str(len(self.keys))
        return ("EVALSHA", self.script.sha, count, *self.keys, *texts(self.args))

    def full_command(self) -> tuple[bytes | str, ...]:
        """Return the command with the script's text."""
        count = str(len(self.keys))
        return ("EVAL", self.script.source, count, *self.keys, *texts(self.args))

    def again(self) -> "Call[T]":
        """Return the call to send to a server that may have run it already."""
        if self.full is not None:
            return self.full().again()
        if not self.repeat:
            return self
        args = list(self.args)
        for index, argument in self.repeat.items():
            args[index] = argument
        return replace(self, args=args)


@brief
class InFull(Call[T], frozen=True):
    """A call that brings the script's text, for a server that does not know the script yet."""

    @classmethod
    def of(cls, call: Call[T]) -> "InFull[T]":
        return cls(*astuple(call))

    def command(self) -> tuple[bytes | str, ...]:
        return self.full_command()


class CallPacker(HiredisRespSerializer):
    """Writes commands as redis-py does, but hands no number to hiredis.

    It does not look at each argument of a script call, because that cost more than a small task: `Call.command` does.
    """

    def pack(self, *args: Any) -> list[bytes]:
        if args[0] == "EVALSHA":
            try:
                return [pack_command(args)]
            except TypeError:
                # Not an Argument: redis-py knows more types, or names the wrong one.
                pass
        packed: list[bytes] = super().pack(*texts(args))
        return packed
