"""Smile, Jackson's binary JSON, version 0.

Source: SmileGenerator.java and SmileConstants.java; https://github.com/FasterXML/smile-format-specification
"""

from decimal import Decimal

from django_delayq.codecs.binary import (
    BE_DOUBLE,
    BE_FLOAT,
    ByteReader,
    plain_utf8,
    twos_complement,
)
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.decimals import (
    as_decimal,
    read_big_integer,
    split_decimal,
)
from django_delayq.codecs.jackson.tree import Tagged
from django_delayq.codecs.java_text import utf16_units
from django_delayq.codecs.values import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    BigInteger,
    Float,
)
from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.redaction import show

#: ``:)``, a line feed, and the flag that names are shared.
HEADER = b":)\n\x01"
_SHARES_NAMES, _SHARES_TEXTS = 0x01, 0x02
#: How many names or texts are shared before the table starts anew.
_MAX_SHARED = 1024
#: The longest text, in UTF-16 units, that Jackson checks for ASCII; it writes a longer one as if it were not.
_MAX_LOOKED_AT = 2666

_EMPTY, _NULL, _FALSE, _TRUE, _INT, _LONG, _BIG_INTEGER = range(0x20, 0x27)
_FLOAT, _DOUBLE, _DECIMAL = 0x28, 0x29, 0x2A
_LONG_ASCII, _LONG_TEXT, _BINARY, _RAW_BINARY = 0xE0, 0xE4, 0xE8, 0xFD
_ARRAY, _END_ARRAY, _OBJECT, _END_OBJECT, _END_TEXT = range(0xF8, 0xFD)
_LONG_NAME = 0x34


class Smile:
    """The coat of SmileJacksonCodec."""

    def __repr__(self) -> str:
        return "Smile()"

    def dump(self, tree: object) -> bytes:
        """Write a tree."""
        return _Writer().document(tree)

    def load(self, payload: bytes) -> object:
        """Read a tree."""
        return _Reader(payload).document()


class _Writer:
    def __init__(self) -> None:
        self._out = bytearray(HEADER)
        self._names: dict[str, int] = {}
        self._count = 0

    def document(self, tree: object) -> bytes:
        self._write(tree)
        return bytes(self._out)

    def _write(self, node: object) -> None:
        out = self._out
        if isinstance(node, str):
            self._text(node)
        elif node is None:
            out.append(_NULL)
        elif isinstance(node, bool):
            out.append(_TRUE if node else _FALSE)
        elif isinstance(node, int):
            self._integer(node)
        elif isinstance(node, float):
            self._floating(node)
        elif isinstance(node, list | Tagged):
            out.append(_ARRAY)
            for item in node:
                self._write(item)
            out.append(_END_ARRAY)
        elif isinstance(node, dict):
            out.append(_OBJECT)
            for key, item in node.items():
                self._name(key)
                self._write(item)
            out.append(_END_OBJECT)
        elif isinstance(node, bytes):
            out.append(_BINARY)
            self._packed(node)
        elif isinstance(node, Decimal):
            unscaled, scale = split_decimal(node)
            out.append(_DECIMAL)
            self._number(_zigzag(scale))
            self._packed(twos_complement(unscaled))
        else:
            raise EncodeError(f"{show(node)} cannot be written as Smile")

    def _integer(self, number: int) -> None:
        out = self._out
        if isinstance(number, BigInteger) or not LONG_MIN <= number <= LONG_MAX:
            out.append(_BIG_INTEGER)
            self._packed(twos_complement(number))
        elif -16 <= number < 16:
            out.append(0xC0 + _zigzag(number))
        else:
            out.append(_INT if INT_MIN <= number <= INT_MAX else _LONG)
            self._number(_zigzag(number))

    def _number(self, number: int) -> None:
        """Write a number, high bits first, 7 bits a byte; the last byte has 6 bits and its top bit set."""
        parts = [0x80 | number & 0x3F]
        number >>= 6
        while number:
            parts.append(number & 0x7F)
            number >>= 7
        self._out += bytes(reversed(parts))

    def _floating(self, number: float) -> None:
        single = isinstance(number, Float)
        bits = int.from_bytes((BE_FLOAT if single else BE_DOUBLE).pack(number), "big")
        size = 5 if single else 10
        self._out.append(_FLOAT if single else _DOUBLE)
        self._out += bytes(bits >> 7 * i & 0x7F for i in reversed(range(size)))

    def _packed(self, raw: bytes) -> None:
        """Write the length of some bytes, then the bytes, 7 bits a byte; the bits left over come last."""
        self._number(len(raw))
        for start in range(0, len(raw), 7):
            group = raw[start : start + 7]
            bits = int.from_bytes(group, "big")
            rest = len(group)
            self._out += bytes(
                (bits >> rest) >> 7 * i & 0x7F for i in reversed(range(rest))
            )
            self._out.append(bits & (1 << rest) - 1)

    def _text(self, text: str) -> None:
        out, raw = self._out, plain_utf8(text, "Smile")
        if not raw:
            out.append(_EMPTY)
        elif len(raw) <= 64:
            # The shortest text that is not ASCII has two bytes.
            out.append(0x40 + len(raw) - 1 if text.isascii() else 0x80 + len(raw) - 2)
            out += raw
        else:
            looked_at = text.isascii() and utf16_units(text) <= _MAX_LOOKED_AT
            out.append(_LONG_ASCII if looked_at else _LONG_TEXT)
            out += raw
            out.append(_END_TEXT)

    def _name(self, name: str) -> None:
        out = self._out
        if not name:
            out.append(_EMPTY)
            return
        index = self._names.get(name)
        if index is not None:
            out += bytes(
                [0x40 + index] if index < 64 else [0x30 + (index >> 8), index & 0xFF]
            )
            return
        raw = plain_utf8(name, "Smile")
        if name.isascii() and len(raw) <= 64:
            out.append(0x80 + len(raw) - 1)
            out += raw
        elif not name.isascii() and len(raw) <= 56:
            out.append(0xC0 + len(raw) - 2)
            out += raw
        else:
            out.append(_LONG_NAME)
            out += raw
            out.append(_END_TEXT)
        self._share(name)

    def _share(self, name: str) -> None:
        if self._count == _MAX_SHARED:
            self._names.clear()
            self._count = 0
        # The low byte of a reference is never one of the end markers.
        if self._count & 0xFF < 0xFE:
            self._names[name] = self._count
        self._count += 1


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self._source = ByteReader(payload, "Smile")
        self._names: list[str] = []
        self._texts: list[str] | None = None

    def document(self) -> object:
        source = self._source
        head = source.take(4)
        if head[:3] != HEADER[:3] or head[3] >> 4:
            source.fail("no header of Smile version 0", 0)
        self._shares_names = bool(head[3] & _SHARES_NAMES)
        if head[3] & _SHARES_TEXTS:
            self._texts = []
        tree = self._read(0)
        if source.left == 1 and source.data[-1] == 0xFF:  # an end marker is allowed
            return tree
        if source.left:
            source.fail(f"{source.left} bytes after the value")
        return tree

    def _read(self, depth: int) -> object:
        source = self._source
        if depth > 2 * MAX_DEPTH + 2:  # a class and its body take two levels
            source.fail(f"nested deeper than {MAX_DEPTH} levels")
        first = source.byte()
        if 0x40 <= first < 0xC0:
            return self._short_text(first)
        if 0xC0 <= first < 0xE0:
            return _unzigzag(first & 0x1F)
        if first < 0x20 and first:
            return self._shared_text(first - 1)
        match first:
            case 0x20:
                return ""
            case 0x21:
                return None
            case 0x22 | 0x23:
                return first == _TRUE
            case 0x24 | 0x25:
                return self._integer(32 if first == _INT else 64)
            case 0x26:
                return self._big_integer()
            case 0x28:
                return Float(self._floating(5, 4))
            case 0x29:
                return self._floating(10, 8)
            case 0x2A:
                return self._decimal()
            case 0xE0 | 0xE4:
                return self._long_text()
            case 0xE8:
                return self._packed()
            case 0xFD:
                return source.take(self._size())
            case 0xEC | 0xED | 0xEE | 0xEF:
                return self._shared_text((first & 3) << 8 | source.byte())
            case 0xF8:
                return self._array(depth)
            case 0xFA:
                return self._object(depth)
            case _:
                source.fail(f"unknown token {first:#04x}", source.position - 1)

    def _array(self, depth: int) -> list[object]:
        source, items = self._source, []
        while not self._ends(_END_ARRAY):
            items.append(self._read(depth + 1))
        source.position += 1
        return items

    def _object(self, depth: int) -> dict[object, object]:
        found: dict[object, object] = {}
        while not self._ends(_END_OBJECT):
            name = self._name()
            found[name] = self._read(depth + 1)
        self._source.position += 1
        return found

    def _ends(self, marker: int) -> bool:
        source = self._source
        return source.left > 0 and source.data[source.position] == marker

    def _name(self) -> str:
        source = self._source
        first = source.byte()
        if first == _EMPTY:
            return ""
        if 0x30 <= first <= 0x33:
            return self._shared_name((first & 3) << 8 | source.byte())
        if 0x40 <= first < 0x80:
            return self._shared_name(first - 0x40)
        if 0x80 <= first < 0xC0:
            name = source.utf8(first - 0x80 + 1)
        elif 0xC0 <= first < 0xF8:
            name = source.utf8(first - 0xC0 + 2)
        elif first == _LONG_NAME:
            name = self._until_end()
        else:
            source.fail(f"unknown token {first:#04x} for a name", source.position - 1)
        if self._shares_names:
            if len(self._names) == _MAX_SHARED:
                self._names.clear()
            self._names.append(name)
        return name

    def _shared_name(self, index: int) -> str:
        if index >= len(self._names):
            self._source.fail(f"shared name {index}, of {len(self._names)}")
        return self._names[index]

    def _short_text(self, first: int) -> str:
        size = first - 0x40 + 1 if first < 0x80 else first - 0x80 + 2
        text = self._source.utf8(size)
        if self._texts is not None and size <= 65:
            if len(self._texts) == _MAX_SHARED:
                self._texts.clear()
            self._texts.append(text)
        return text

    def _shared_text(self, index: int) -> str:
        if self._texts is None or index >= len(self._texts):
            self._source.fail(f"shared text {index}, of {len(self._texts or ())}")
        return self._texts[index]

    def _long_text(self) -> str:
        return self._until_end()

    def _until_end(self) -> str:
        source = self._source
        end = source.data.find(_END_TEXT, source.position)
        if end == -1:
            source.fail("a text without an end")
        text = source.utf8(end - source.position)
        source.position += 1
        return text

    def _number(self) -> int:
        number, start = 0, self._source.position
        while True:
            byte = self._source.byte()
            if byte >= 0x80:
                return number << 6 | byte & 0x3F
            number = number << 7 | byte
            if self._source.position - start > 10:
                self._source.fail("a number of more than 64 bits", start)

    def _integer(self, bits: int) -> int:
        start = self._source.position
        number = self._number()
        if number >> bits:
            self._source.fail(f"a number of more than {bits} bits", start)
        return _unzigzag(number)

    def _size(self) -> int:
        return self._number()

    def _floating(self, size: int, width: int) -> float:
        source, start = self._source, self._source.position
        bits = 0
        for byte in source.take(size):
            if byte >= 0x80:
                source.fail("a number with a top bit set", start)
            bits = bits << 7 | byte
        if bits >> 8 * width:
            source.fail(f"a number of more than {width} bytes", start)
        form = BE_FLOAT if width == 4 else BE_DOUBLE
        value: float = form.unpack(bits.to_bytes(width, "big"))[0]
        return value

    def _packed(self) -> bytes:
        source, size = self._source, self._size()
        raw = source.take(size + (size + 6) // 7)
        parts = []
        for start in range(0, len(raw), 8):
            group = raw[start : start + 8]
            rest, bits = len(group) - 1, 0
            for byte in group[:-1]:
                bits = bits << 7 | byte & 0x7F
            parts.append(
                (bits << rest | group[-1] & (1 << rest) - 1).to_bytes(rest, "big")
            )
        return b"".join(parts)

    def _big_integer(self) -> BigInteger:
        start = self._source.position
        try:
            return read_big_integer(self._packed())
        except ValueError as error:
            if isinstance(error, DecodeError):
                raise
            self._source.fail(str(error), start)

    def _decimal(self) -> Decimal:
        scale = self._integer(32)
        return as_decimal(self._big_integer(), scale)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 ^ -(number & 1)
