"""Reads and writes bytes for the binary codecs: checks bounds before it allocates, and knows Java's UTF-8."""

import struct
from typing import NoReturn

from django_delayq.codecs.java_text import from_surrogates, to_surrogates
from django_delayq.exceptions import DecodeError, EncodeError

BE_FLOAT, BE_DOUBLE = struct.Struct(">f"), struct.Struct(">d")
LE_FLOAT, LE_DOUBLE = struct.Struct("<f"), struct.Struct("<d")

_CONTINUATION = bytes(range(0x80, 0xC0))


class ByteReader:
    """A position in a payload. Each read checks that its bytes are there before it allocates memory."""

    __slots__ = ("data", "name", "position")

    def __init__(self, data: bytes, name: str, position: int = 0) -> None:
        self.data = data
        self.name = name
        self.position = position

    def fail(self, message: str, offset: int | None = None) -> NoReturn:
        """Raise a DecodeError that names an offset, by default that of the next byte."""
        at = self.position if offset is None else offset
        raise DecodeError(f"{self.name}: {message} at byte {at}", self.data, at)

    @property
    def left(self) -> int:
        """How many bytes are still unread."""
        return len(self.data) - self.position

    def byte(self) -> int:
        """Read one byte, unsigned."""
        try:
            value = self.data[self.position]
        except IndexError:
            self.fail("the payload ends")
        self.position += 1
        return value

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            self.fail(f"{size} bytes announced, {self.left} left")
        found = self.data[self.position : end]
        self.position = end
        return found

    def floating(self, form: struct.Struct) -> float:
        """Read one floating-point number."""
        value: float = form.unpack(self.take(form.size))[0]
        return value

    def integer(self, size: int, *, signed: bool = False) -> int:
        """Read a big-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big", signed=signed)

    def count(self, elements: int, element_size: int = 1) -> int:
        """Check that the rest can hold ``elements`` elements of at least ``element_size`` bytes; return their number."""
        if elements * element_size > self.left:
            self.fail(f"{elements} elements announced, {self.left} bytes left")
        return elements

    def java_text(self, units: int) -> str:
        """Read text of ``units`` UTF-16 units, 1 – 3 bytes each.

        Shape: each unit in UTF-8 by itself, so an emoji takes six bytes; U+0000 is ``00`` in Kryo,
        ``c0 80`` in what Java calls modified UTF-8.
        """
        start = self.position
        chunk = self.take(units)
        if chunk.isascii():
            return chunk.decode("ascii")
        # Every byte that is not a continuation byte begins a unit. Count those, and advance by the
        # number of units still missing: that never goes past the first byte of the last unit.
        end, missing = start, units
        while missing:
            self.position = end
            begun = len(self.take(missing).translate(None, _CONTINUATION))
            end += missing
            missing -= begun
            if end - start > 3 * units:
                self.fail("not text", start)
        last = self.data[end - 1]
        self.position = end
        self.take(0 if last < 0x80 else 1 if last < 0xE0 else 2)
        raw = self.data[start : self.position]
        if max(raw) >= 0xF0:
            self.fail("not Java's text, which has no 4-byte units", start)
        try:
            text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            self.fail(f"not text: {error.reason}", start + error.start)
        return from_surrogates(text)

    def utf8(self, size: int) -> str:
        """Read ``size`` bytes of plain UTF-8."""
        start = self.position
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            self.fail(f"not text: {error.reason}", start + error.start)


def java_utf8(text: str) -> bytes:
    """Write text as ``ByteReader.java_text`` reads it, with U+0000 as one byte."""
    if text.isascii():
        return text.encode("ascii")
    return to_surrogates(text).encode("utf-8", "surrogatepass")


def plain_utf8(text: str, name: str) -> bytes:
    """Write text in UTF-8.

    Raises:
        EncodeError: the text has half of a surrogate pair, which UTF-8 cannot hold.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"{name} cannot hold {text!r:.80}: half of a surrogate pair at {error.start}"
        ) from None


def twos_complement(number: int) -> bytes:
    """Write an integer as ``BigInteger.toByteArray`` does: big-endian, in the fewest bytes."""
    size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
