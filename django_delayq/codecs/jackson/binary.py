"""Redisson's Jackson codecs in binary coats: CborJacksonCodec, MsgPackJacksonCodec, Smile…

A coat turns a tree (see ``tree``) into bytes and back.
"""

from collections.abc import Callable
from typing import Protocol

from django_delayq.codecs.jackson.read import TreeReader
from django_delayq.codecs.jackson.tree import Dialect
from django_delayq.codecs.jackson.write import TreeWriter
from django_delayq.exceptions import DecodeError, EncodeError


class Coat(Protocol):
    """A binary format."""

    def dump(self, tree: object) -> bytes:
        """Write a tree; raise EncodeError for what the format cannot hold."""
        ...

    def load(self, payload: bytes) -> object:
        """Read a tree; raise DecodeError for anything else."""
        ...


class JacksonBinaryCodec:
    """One of Redisson's binary Jackson codecs, in one dialect."""

    def __init__(self, name: str, dialect: Dialect, coat: Callable[[], Coat]) -> None:
        self.name = name
        self._dialect = dialect
        self._coat = coat()
        self._writer = TreeWriter(dialect)
        self._reader = TreeReader(dialect)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, {self._dialect!r}, {self._coat!r})"
        )

    def encode(self, value: object) -> bytes:
        """Write a value; ``values`` says which Python type is which in Java.

        Raises:
            EncodeError: the format cannot hold the value, or one inside it.
        """
        try:
            return self._coat.dump(self._writer.tree(value))
        except RecursionError:
            raise EncodeError(f"{self.name}: nested too deep") from None
        except EncodeError:
            raise
        except ValueError as error:  # an int of more digits than Python prints
            raise EncodeError(f"{self.name}: {error}") from None

    def decode(self, payload: bytes) -> object:
        """Read a payload.

        Raises:
            DecodeError: the payload is not in this format, is nested too deep, or does not fit the classes it names.
        """
        try:
            return self._reader.value(self._coat.load(payload))
        except DecodeError as error:
            raise DecodeError(f"{self.name}: {error}", payload, error.offset) from None
        except RecursionError:
            raise DecodeError(f"{self.name}: nested too deep", payload) from None
