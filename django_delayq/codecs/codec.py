"""What every codec is: a name, and the way from a value to a payload and back."""

from typing import Protocol, runtime_checkable

#: Lists, maps and objects in each other, read and written. Deeper ones are refused: Jackson
#: stops at 500 or 1000, and Python's own stack has to hold the way down.
MAX_DEPTH = 200
#: Characters of a class name that is read. Payloads name a class once and then by its number, so a
#: long one would cost its length again and again. Java's own are below a hundred.
MAX_CLASS_NAME = 500


@runtime_checkable
class Codec(Protocol):
    """Turns values into payloads. Stateless, so one serves any number of threads."""

    @property
    def name(self) -> str:
        """Redisson's class name without the package, or ours where it has none."""
        ...

    def encode(self, value: object) -> bytes:
        """Write a value.

        Raises:
            EncodeError: the format cannot hold it.
        """
        ...

    def decode(self, payload: bytes) -> object:
        """Read a payload, whoever wrote it: build plain values, call no class.

        Raises:
            DecodeError: the bytes are not of this codec, or say more than Python can hold.
        """
        ...
