"""One Redis operation, described without I/O: the script, its keys and arguments, and how to read the reply."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
from hiredis import pack_command
from msgspec.structs import replace
from redis.connection import HiredisRespSerializer

from django_delayq.calls.script import Script

T = TypeVar("T")


#: What redis-py can put on the wire as it stands.
Argument = bytes | str | int


def identity(reply: Any) -> Any:
    return reply


_NOTHING: Mapping[int, Argument] = MappingProxyType({})


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A script call that has not been made yet."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    read: Callable[[Any], T] = identity
    #: Arguments, by index, that are different when the call is made again because its reply was lost. None: making it
    #: twice would do it twice, so a lost reply is an error.
    repeat: Mapping[int, Argument] | None = _NOTHING
    #: A repeat is known to be one for so long: what a script remembers of the first, it forgets.
    window_ms: float = math.inf
    #: Makes the call of a script that does what this one leaves alone: where the reply is nil, and for a repeat.
    full: "Callable[[], Call[T]] | None" = None

    def command(self) -> tuple[Argument, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def full_command(self) -> tuple[Argument, ...]:
        """The same with the script's text, for a server that has not seen it yet."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)

    def again(self) -> "Call[T]":
        """The same call, for a server that may have run it already."""
        if self.full is not None:
            return self.full().again()
        if not self.repeat:
            return self
        args = list(self.args)
        for index, argument in self.repeat.items():
            args[index] = argument
        return replace(self, args=args)


class CallPacker(HiredisRespSerializer):
    """Writes script calls as redis-py does, without looking at each argument first: that cost a job more than its task."""

    def pack(self, *args: Any) -> list[bytes]:
        if args[0] == "EVALSHA":
            try:
                return [pack_command(args)]
            except TypeError:
                # What no Argument is: redis-py knows more types, or says which one it is.
                pass
        packed: list[bytes] = super().pack(*args)
        return packed
