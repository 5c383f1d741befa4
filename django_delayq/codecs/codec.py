"""The protocol of a codec: a name, and the way from a value to a payload and back."""

from typing import Protocol, runtime_checkable

#: How deep lists, maps and objects may nest, when read and when written. Jackson stops at 500 or
#: 1000, and Python's own stack has to hold every level.
MAX_DEPTH = 200
#: The longest class name that is read, in characters. A payload gives a name once and refers to it by
#: number from then on; each reference would cost the length of the name. Java's own have under a hundred.
MAX_CLASS_NAME = 500


@runtime_checkable
class Codec(Protocol):
    """Turn values into payloads and back. A codec has no state, so threads can share it."""

    @property
    def name(self) -> str:
        """Name of Redisson's class without its package, or another name if Redisson has no such codec."""
        ...

    def encode(self, value: object) -> bytes:
        """Write a value.

        Raises:
            EncodeError: the format cannot hold it.
        """
        ...

    def decode(self, payload: bytes) -> object:
        """Read a payload from any writer: build plain values, never call a class.

        Raises:
            DecodeError: the bytes are not this codec's, or hold a value that Python cannot.
        """
        ...
