"""Text and numbers as text: StringCodec, LongCodec, IntegerCodec, DoubleCodec.

With each of them, Redisson writes ``toString()`` of any object in UTF-8, and checks the type only
when it reads. We write only what the same codec can read back.
"""

import re
from typing import ClassVar

from django_delayq.codecs.java_text import double_text, java_string
from django_delayq.codecs.values import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.redaction import show

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?)",
    re.ASCII,
)
#: What ``Double.valueOf`` trims: everything up to a space.
_TRIMMED = "".join(map(chr, range(0x21)))


class StringCodec:
    """UTF-8 text. ``client/codec/StringCodec.java``."""

    name = "StringCodec"

    def encode(self, value: object) -> bytes:
        """Write text; a number, bool, Decimal, UUID or enum as its ``toString`` in Java.

        Raises:
            EncodeError: the value is of any other type, or has half of a surrogate pair (Java writes
                ``?`` for it).
        """
        text = value if type(value) is str else java_string(value)
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(
                f"{text!r} has half of a surrogate pair at {error.start}"
            ) from None

    def decode(self, payload: bytes) -> object:
        """Read text.

        Raises:
            DecodeError: the payload is not UTF-8 (Java reads U+FFFD in place of what is not).
        """
        return _text(payload, self.name)


class LongCodec:
    """Decimal text of 64 bits. ``client/codec/LongCodec.java``."""

    name: ClassVar[str] = "LongCodec"
    _range: ClassVar[tuple[int, int]] = (LONG_MIN, LONG_MAX)

    def encode(self, value: object) -> bytes:
        """Write an int that fits."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise EncodeError(f"{self.name} writes whole numbers, got {show(value)}")
        low, high = self._range
        if not low <= value <= high:
            raise EncodeError(
                f"{int(value)} is outside {low} … {high}, the range that {self.name} reads"
            )
        return b"%d" % value

    def decode(self, payload: bytes) -> object:
        """Read a plain int, not a Long, so that it is a number like any other."""
        text = _text(payload, self.name)
        low, high = self._range
        # Every long fits into 20 characters; a longer text would cost time before it is refused.
        if (
            len(text) <= 20
            and _INTEGER.fullmatch(text)
            and low <= (number := int(text)) <= high
        ):
            return number
        raise DecodeError(
            f"{text[:40]!r} is not a number that {self.name} reads", payload, 0
        )


class IntegerCodec(LongCodec):
    """Decimal text of 32 bits. ``codec/IntegerCodec.java``."""

    name = "IntegerCodec"
    _range = (INT_MIN, INT_MAX)


class DoubleCodec:
    """Text of a double as Java writes it: ``1.0E300``. ``client/codec/DoubleCodec.java``."""

    name = "DoubleCodec"

    def encode(self, value: object) -> bytes:
        """Write a float, or an int as it is."""
        if isinstance(value, float):
            return double_text(value).encode()
        if isinstance(value, int) and not isinstance(value, bool):
            return b"%d" % value
        raise EncodeError(f"DoubleCodec writes numbers, got {show(value)}")

    def decode(self, payload: bytes) -> object:
        """Read a float."""
        text = _text(payload, self.name).strip(_TRIMMED)
        if not _DOUBLE.fullmatch(text):
            raise DecodeError(
                f"{text[:40]!r} is not a number that DoubleCodec reads", payload, 0
            )
        return float(text if text[-1] in "Ny" else text.rstrip("dDfF"))


def _text(payload: bytes, name: str) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"{name}: {error}", payload, error.start) from None
