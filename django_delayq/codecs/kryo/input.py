"""Reads the parts that all values of Kryo share: numbers in few bytes, texts and classes."""

import re
from typing import NoReturn

from django_delayq.codecs.binary import ByteReader
from django_delayq.codecs.codec import MAX_CLASS_NAME
from django_delayq.codecs.kryo.kinds import BY_NAME, NULL, REGISTERED

_END_OF_ASCII = re.compile(rb"[\x80-\xff]")


class KryoInput:
    """A position in one payload."""

    def __init__(self, data: bytes) -> None:
        self.source = ByteReader(data, "Kryo5Codec")
        self._names: list[str] = []

    def _fail(self, message: str) -> NoReturn:
        self.source.fail(message, self.source.position - 1)

    def varint(self) -> int:
        """Read an int in the form that suits positive ones: 1 – 5 bytes, low bits first."""
        number = self._bits(5) & 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number

    def zigzag(self) -> int:
        """Read an int with the sign in its lowest bit."""
        number = self._bits(5) & 0xFFFFFFFF
        return (number >> 1) ^ -(number & 1)

    def varlong(self) -> int:
        """Read a long in the form that suits positive ones: 1 – 9 bytes, the ninth with all its 8 bits."""
        number = self._bits(9)
        return number - (1 << 64) if number >> 63 else number

    def zigzag_long(self) -> int:
        """Read a long with the sign in its lowest bit."""
        number = self._bits(9)
        return (number >> 1) ^ -(number & 1)

    def _bits(self, longest: int) -> int:
        number = 0
        for index in range(longest):
            byte = self.source.byte()
            if index == 8:
                return number | byte << 56
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return number
        return number

    def flagged(self) -> tuple[bool, int]:
        """Read a flag and a number that share a first byte: the flag, whether bytes follow, 6 bits."""
        first = self.source.byte()
        number = first & 0x3F
        if first & 0x40:
            number |= (self._bits(5) << 6) & 0xFFFFFFFF
        return first >= 0x80, number

    def size(self) -> int | None:
        """Read a size, which is written plus one; ``None`` for null."""
        number = self.varint()
        if number < 0:
            self._fail(f"size {number}")
        return number - 1 if number else None

    def string(self) -> str | None:
        """Read text: ASCII with the top bit set on its last byte, or its length and Java's UTF-8."""
        source = self.source
        if source.position < len(source.data) and source.data[source.position] < 0x80:
            end = _END_OF_ASCII.search(source.data, source.position)
            if end is None:
                source.fail("text without an end")
            raw = source.take(end.end() - source.position)
            return (raw[:-1] + bytes([raw[-1] & 0x7F])).decode("ascii")
        _, number = self.flagged()
        return source.java_text(number - 1) if number else None

    def text(self) -> str:
        """Read text that is not null."""
        start = self.source.position
        text = self.string()
        if text is None:
            self.source.fail("null where a text must be", start)
        return text

    def flag(self) -> bool:
        """Read a boolean."""
        value = self.source.byte()
        if value > 1:
            self._fail(f"{value:#04x} for a boolean")
        return value == 1

    def _fixed(self, size: int) -> int:
        return int.from_bytes(self.source.take(size), "little", signed=True)

    def class_name(self) -> str | None:
        """Read the class of what follows; ``None`` for null."""
        number = self._class_id()
        return (
            number if number is None or isinstance(number, str) else REGISTERED[number]
        )

    def _class_id(self) -> int | str | None:
        start = self.source.position
        number = self.varint()
        if number == NULL:
            return None
        if number in REGISTERED:
            return number
        if number != BY_NAME:
            self.source.fail(
                f"class {number}, which is not one that Redisson registers", start
            )
        index = self.varint()
        if index == len(self._names):
            name = self.text()
            if not 0 < len(name) <= MAX_CLASS_NAME:
                self.source.fail(f"a class name of {len(name)} characters", start)
            self._names.append(name)
        elif not 0 <= index < len(self._names):
            self.source.fail(f"class name {index}, of {len(self._names)}", start)
        return self._names[index]
