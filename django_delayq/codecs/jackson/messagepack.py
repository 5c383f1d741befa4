"""MessagePack as jackson-dataformat-msgpack writes it."""

from decimal import Decimal

from django_delayq.codecs.binary import BE_DOUBLE, BE_FLOAT, ByteReader, plain_utf8
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.jackson.tree import Tagged
from django_delayq.codecs.values import LONG_MIN, Float
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_MAX_UNSIGNED = 2**64 - 1


class MessagePack:
    """The coat of MsgPackJacksonCodec."""

    def __repr__(self) -> str:
        return "MessagePack()"

    def dump(self, tree: object) -> bytes:
        """Write a tree."""
        out = bytearray()
        self._write(out, tree)
        return bytes(out)

    def load(self, payload: bytes) -> object:
        """Read a tree."""
        source = ByteReader(payload, "MessagePack")
        tree = self._read(source, 0)
        if source.left:
            source.fail(f"{source.left} bytes after the value")
        return tree

    def _write(self, out: bytearray, node: object) -> None:
        if isinstance(node, str):
            raw = plain_utf8(node, "MessagePack")
            _sized(out, len(raw), (0xA0, 32), (0xD9, 0xDA, 0xDB))
            out += raw
        elif node is None:
            out.append(0xC0)
        elif isinstance(node, bool):
            out.append(0xC3 if node else 0xC2)
        elif isinstance(node, int):
            _integer(out, node)
        elif isinstance(node, float):
            if isinstance(node, Float):
                out += b"\xca" + BE_FLOAT.pack(node)
            else:
                out += b"\xcb" + BE_DOUBLE.pack(node)
        elif isinstance(node, list | Tagged):
            _sized(out, len(node), (0x90, 16), (None, 0xDC, 0xDD))
            for item in node:
                self._write(out, item)
        elif isinstance(node, dict):
            _sized(out, len(node), (0x80, 16), (None, 0xDE, 0xDF))
            for key, item in node.items():
                self._write(out, key)
                self._write(out, item)
        elif isinstance(node, bytes):
            _sized(out, len(node), (0, 0), (0xC4, 0xC5, 0xC6))
            out += node
        elif isinstance(node, Decimal):
            _decimal(out, node)
        else:
            raise EncodeError(f"{show(node)} cannot be written as MessagePack")

    def _read(self, source: ByteReader, depth: int) -> object:
        if depth > 2 * MAX_DEPTH + 2:  # a class and its body take two levels
            source.fail(f"nested deeper than {MAX_DEPTH} levels")
        first = source.byte()
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first < 0x90:
            return self._map(source, first & 0x0F, depth)
        if first < 0xA0:
            return self._array(source, first & 0x0F, depth)
        if first < 0xC0:
            return source.utf8(first & 0x1F)
        if 0xCC <= first <= 0xD3:
            return source.integer(1 << (first & 3), signed=first >= 0xD0)
        match first:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return first == 0xC3
            case 0xC4 | 0xC5 | 0xC6:
                return source.take(source.integer(1 << (first - 0xC4)))
            case 0xCA:
                return Float(source.floating(BE_FLOAT))
            case 0xCB:
                return source.floating(BE_DOUBLE)
            case 0xD9 | 0xDA | 0xDB:
                return source.utf8(source.integer(1 << (first - 0xD9)))
            case 0xDC | 0xDD:
                return self._array(source, source.integer(2 << (first - 0xDC)), depth)
            case 0xDE | 0xDF:
                return self._map(source, source.integer(2 << (first - 0xDE)), depth)
            case _:
                source.fail(
                    f"{first:#04x} is an extension or unused", source.position - 1
                )

    def _array(self, source: ByteReader, size: int, depth: int) -> list[object]:
        source.count(size)
        items = []
        # Not a comprehension: in Python 3.11 each takes one more stack frame per level.
        for _ in range(size):
            items.append(self._read(source, depth + 1))
        return items

    def _map(self, source: ByteReader, size: int, depth: int) -> dict[object, object]:
        source.count(size, 2)
        found: dict[object, object] = {}
        for _ in range(size):
            start = source.position
            key = self._read(source, depth + 1)
            if type(key) is not str and type(key) is not int:
                source.fail("a key that is neither text nor a whole number", start)
            found[key] = self._read(source, depth + 1)
        return found


def _sized(
    out: bytearray, size: int, short: tuple[int, int], tags: tuple[int | None, int, int]
) -> None:
    if size < short[1]:
        out.append(short[0] | size)
        return
    for tag, width in zip(tags, (1, 2, 4), strict=True):
        if tag is not None and size < 1 << 8 * width:
            out.append(tag)
            out += size.to_bytes(width, "big")
            return
    raise EncodeError(f"{size} elements or bytes are too many for MessagePack")


def _integer(out: bytearray, number: int) -> None:
    if -32 <= number < 128:
        out.append(number & 0xFF)
        return
    if not LONG_MIN <= number <= _MAX_UNSIGNED:
        raise EncodeError(f"{int(number)} does not fit into the 64 bits of MessagePack")
    for index, size in enumerate((1, 2, 4, 8)):
        if 0 <= number < 1 << 8 * size:
            out.append(0xCC + index)
            out += number.to_bytes(size, "big")
            return
        if -(1 << 8 * size - 1) <= number < 0:
            out.append(0xD0 + index)
            out += number.to_bytes(size, "big", signed=True)
            return


def _decimal(out: bytearray, value: Decimal) -> None:
    """Write a BigDecimal as the integer or the double that is the same number.

    Raises:
        EncodeError: neither is the same number; Redisson cannot write it either.
    """
    if not value.is_finite():
        raise EncodeError(f"{value!r} is not a number that a BigDecimal can hold")
    if value.adjusted() < 20 and value == value.to_integral_value():
        _integer(out, int(value))
        return
    double = float(value)
    if double - double != 0 or Decimal(float.__repr__(double)) != value:
        raise EncodeError(
            f"MessagePack has no decimals, and {show(value)} is not a double"
        )
    out += b"\xcb" + BE_DOUBLE.pack(double)
