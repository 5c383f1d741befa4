"""Writes the parts that all values of Kryo share: numbers in few bytes, texts and classes."""

import struct
from typing import Any

from django_delayq.codecs.binary import java_utf8
from django_delayq.codecs.java_text import utf16_units
from django_delayq.codecs.kryo.kinds import BY_NAME, ID_OF_CLASS
from django_delayq.codecs.values import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_SHORT_ASCII = range(2, 33)

_FIXED = {
    "boolean": struct.Struct("<?"),
    "byte": struct.Struct("<b"),
    "short": struct.Struct("<h"),
    "char": struct.Struct("<H"),
    "float": struct.Struct("<f"),
    "double": struct.Struct("<d"),
}


class KryoOutput:
    """The bytes of one payload."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._names: dict[str, int] = {}

    def varint(self, number: int) -> None:
        """Write an int, low bits first; a negative one takes five bytes."""
        self._bits(number & 0xFFFFFFFF, 5)

    def zigzag(self, number: int) -> None:
        """Write an int with the sign in its lowest bit."""
        self._bits((number << 1 ^ number >> 31) & 0xFFFFFFFF, 5)

    def varlong(self, number: int) -> None:
        """Write a long: at most 9 bytes, all 8 bits of the ninth."""
        self._bits(number & 0xFFFFFFFFFFFFFFFF, 9)

    def zigzag_long(self, number: int) -> None:
        """Write a long with the sign in its lowest bit."""
        self._bits((number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF, 9)

    def _bits(self, number: int, longest: int) -> None:
        out = self._out
        for index in range(longest):
            if index == 8:
                out.append(number)
                return
            if number < 0x80:
                out.append(number)
                return
            out.append(number & 0x7F | 0x80)
            number >>= 7

    def flagged(self, flag: bool, number: int) -> None:
        """Write a flag and a number that share a first byte: the flag, whether bytes follow, 6 bits."""
        first = (0x80 if flag else 0) | (number & 0x3F)
        if number < 0x40:
            self._out.append(first)
        else:
            self._out.append(first | 0x40)
            self._bits(number >> 6, 5)

    def string(self, text: str) -> None:
        """Write text: ASCII with the top bit set on its last byte, or its length and UTF-8."""
        if len(text) in _SHORT_ASCII and text.isascii():
            self.ascii(text)
        else:
            units = utf16_units(text)
            self.flagged(True, units + 1)
            self._out += java_utf8(text)

    def ascii(self, text: str) -> None:
        """Write ASCII of at least two characters, without a length."""
        raw = text.encode("ascii")
        self._out += raw[:-1] + bytes([raw[-1] | 0x80])

    def fixed(self, kind: str, value: Any) -> None:
        """Write a number of a fixed size, little-endian."""
        try:
            self._out += _FIXED[kind].pack(ord(value) if kind == "char" else value)
        except (struct.error, TypeError, OverflowError) as error:
            raise EncodeError(f"{show(value)} is not of type {kind}: {error}") from None

    def primitive(self, kind: str, value: Any) -> None:
        """Write the bare value of a field or array element."""
        if kind not in ("int", "long"):
            self.fixed(kind, value)
            return
        low, high = (INT_MIN, INT_MAX) if kind == "int" else (LONG_MIN, LONG_MAX)
        if not isinstance(value, int) or not low <= value <= high:
            raise EncodeError(f"{show(value)} is not of type {kind}")
        if kind == "int":
            self.zigzag(value)
        else:
            self.zigzag_long(value)

    def class_name(self, name: str) -> None:
        """Write a class: its id, or its name the first time and its number from then on."""
        if name in ID_OF_CLASS:
            self._out.append(ID_OF_CLASS[name])
            return
        self._out.append(BY_NAME)
        index = self._names.get(name)
        self.varint(len(self._names) if index is None else index)
        if index is None:
            self._names[name] = len(self._names)
            if name.isascii() and len(name) > 1:
                self.ascii(name)
            else:
                self.string(name)
