"""CBOR (RFC 8949) as Jackson writes it: maps and typed lists of indefinite length, numbers in the fewest bytes.

Hand-written, because the bytes matter: Redisson's ``remove`` and ``contains`` look for a payload
that is the same to the byte.
"""

import struct
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
    MAX_NUMBER_BYTES,
    as_decimal,
    split_decimal,
)
from django_delayq.codecs.jackson.tree import Tagged
from django_delayq.codecs.java_text import to_surrogates, utf16_units
from django_delayq.codecs.values import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    BigInteger,
    Float,
)
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_HALF_FLOAT = struct.Struct(">e")
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_OPEN, _BREAK = 31, 0xFF
_BIGNUM, _NEGATIVE_BIGNUM, _DECIMAL = 2, 3, 4

#: The longest text in one piece, in UTF-16 units; a longer text is cut into such pieces. CBORGenerator.java.
MAX_TEXT_UNITS = 3996


class Cbor:
    """The coat of CborJacksonCodec.

    ``long_is_nine_bytes``: a number that an int cannot hold takes nine bytes even where five would do
    (Redisson before 3.15). ``negates_bignums``: a negative BigInteger is the tag and its absolute
    value, as Jackson 2 has it; the RFC wants that value less one.
    """

    def __init__(
        self, *, long_is_nine_bytes: bool = False, negates_bignums: bool = True
    ) -> None:
        self._long_is_nine_bytes = long_is_nine_bytes
        self._negates_bignums = negates_bignums

    def __repr__(self) -> str:
        return f"Cbor({self._long_is_nine_bytes}, {self._negates_bignums})"

    def dump(self, tree: object) -> bytes:
        """Write a tree."""
        out = bytearray()
        self._write(out, tree)
        return bytes(out)

    def load(self, payload: bytes) -> object:
        """Read a tree."""
        source = ByteReader(payload, "CBOR")
        tree = self._read(source, 0)
        if source.left:
            source.fail(f"{source.left} bytes after the value")
        return tree

    def _write(self, out: bytearray, node: object) -> None:
        kind = type(node)
        if kind is str:
            self._text(out, node)  # type: ignore[arg-type]
        elif node is None:
            out.append(0xF6)
        elif isinstance(node, bool):
            out.append(0xF5 if node else 0xF4)
        elif isinstance(node, int):
            self._integer(out, node)
        elif isinstance(node, float):
            if isinstance(node, Float):
                out += b"\xfa" + BE_FLOAT.pack(node)
            else:
                out += b"\xfb" + BE_DOUBLE.pack(node)
        elif isinstance(node, Tagged):
            out.append(_head(_ARRAY, _OPEN))
            self._text(out, node.class_name)
            if isinstance(node.body, list):
                out.append(_head(_ARRAY, _OPEN))
                for item in node.body:
                    self._write(out, item)
                out.append(_BREAK)
            else:
                self._write(out, node.body)
            out.append(_BREAK)
        elif isinstance(node, list):
            _length(out, _ARRAY, len(node))
            for item in node:
                self._write(out, item)
        elif isinstance(node, dict):
            out.append(_head(_MAP, _OPEN))
            for key, item in node.items():
                self._write(out, key)
                self._write(out, item)
            out.append(_BREAK)
        elif isinstance(node, bytes):
            _length(out, _BYTES, len(node))
            out += node
        elif isinstance(node, Decimal):
            unscaled, scale = split_decimal(node)
            out += bytes([_head(_TAG, _DECIMAL), _head(_ARRAY, 2)])
            self._integer(out, -scale)
            self._integer(out, unscaled)
        else:
            raise EncodeError(f"{show(node)} cannot be written as CBOR")

    def _integer(self, out: bytearray, number: int) -> None:
        if isinstance(number, BigInteger) or not LONG_MIN <= number <= LONG_MAX:
            below = 0 if self._negates_bignums else 1
            magnitude = number if number >= 0 else -number - below
            out.append(_head(_TAG, _BIGNUM if number >= 0 else _NEGATIVE_BIGNUM))
            raw = twos_complement(magnitude)
            _length(out, _BYTES, len(raw))
            out += raw
            return
        major, magnitude = (
            (_UNSIGNED, number) if number >= 0 else (_NEGATIVE, -1 - number)
        )
        if self._long_is_nine_bytes and not INT_MIN <= number <= INT_MAX:
            out.append(_head(major, 27))
            out += magnitude.to_bytes(8, "big")
        else:
            _length(out, major, magnitude)

    def _text(self, out: bytearray, text: str) -> None:
        raw = plain_utf8(text, "CBOR")
        if len(text) <= MAX_TEXT_UNITS and utf16_units(text) <= MAX_TEXT_UNITS:
            _length(out, _TEXT, len(raw))
            out += raw
            return
        out.append(_head(_TEXT, _OPEN))
        for piece in _pieces(text):
            _length(out, _TEXT, len(piece))
            out += piece
        out.append(_BREAK)

    def _read(self, source: ByteReader, depth: int) -> object:
        if depth > 2 * MAX_DEPTH + 2:  # a class and its body take two levels
            source.fail(f"nested deeper than {MAX_DEPTH} levels")
        start = source.position
        first = source.byte()
        major, minor = first >> 5, first & 0x1F
        if major == _SIMPLE:
            return _simple(source, minor)
        if minor == _OPEN:
            return self._open(source, major, depth)
        size = _size(source, minor)
        if major == _UNSIGNED:
            return size
        if major == _NEGATIVE:
            return -1 - size
        if major == _BYTES:
            return source.take(size)
        if major == _TEXT:
            return source.utf8(size)
        if major == _TAG:
            return self._tagged(source, size, depth, start)
        source.count(size, 1 if major == _ARRAY else 2)
        if major == _ARRAY:
            items = []
            for _ in range(size):
                items.append(self._read(source, depth + 1))
            return items
        found: dict[object, object] = {}
        for _ in range(size):
            key = self._key(source, depth)
            found[key] = self._read(source, depth + 1)
        return found

    def _open(self, source: ByteReader, major: int, depth: int) -> object:
        if major in (_BYTES, _TEXT):
            return _chunks(source, major)
        if major not in (_ARRAY, _MAP):
            source.fail(
                "an indefinite length where none is allowed", source.position - 1
            )
        items: list[object] = []
        found: dict[object, object] = {}
        while True:
            if source.left and source.data[source.position] == _BREAK:
                source.position += 1
                return items if major == _ARRAY else found
            if major == _ARRAY:
                items.append(self._read(source, depth + 1))
            else:
                key = self._key(source, depth)
                found[key] = self._read(source, depth + 1)

    def _key(self, source: ByteReader, depth: int) -> object:
        start = source.position
        key = self._read(source, depth + 1)
        # Neither a bignum, whose hash a payload could choose, nor a Boolean.
        if type(key) is not str and type(key) is not int:
            source.fail("a key that is neither text nor a whole number", start)
        return key

    def _tagged(self, source: ByteReader, tag: int, depth: int, start: int) -> object:
        body = self._read(source, depth + 1)
        if tag in (_BIGNUM, _NEGATIVE_BIGNUM):
            if not isinstance(body, bytes) or len(body) > MAX_NUMBER_BYTES:
                source.fail("a bignum that is not bytes, or has too many", start)
            magnitude = int.from_bytes(body, "big")
            if tag == _BIGNUM:
                return BigInteger(magnitude)
            return BigInteger(-magnitude if self._negates_bignums else -1 - magnitude)
        if tag == _DECIMAL:
            match body:
                case [int(exponent), int(mantissa)] if (
                    INT_MIN < exponent <= INT_MAX
                    and mantissa.bit_length() <= 8 * MAX_NUMBER_BYTES
                ):
                    return as_decimal(mantissa, -exponent)
                case _:
                    source.fail(
                        "a decimal that is not a pair of numbers, or is too long", start
                    )
        return body


def _pieces(text: str) -> list[bytes]:
    """Cut a text into pieces of MAX_TEXT_UNITS, without splitting a surrogate pair."""
    units, pieces, start = to_surrogates(text), [], 0
    while start < len(units):
        end = start + MAX_TEXT_UNITS
        if end < len(units) and "\ud800" <= units[end - 1] <= "\udbff":
            end -= 1
        piece = (
            units[start:end].encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        )
        pieces.append(piece.encode())
        start = end
    return pieces


def _head(major: int, minor: int) -> int:
    return major << 5 | minor


def _length(out: bytearray, major: int, number: int) -> None:
    if number < 24:
        out.append(_head(major, number))
        return
    for minor, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            out.append(_head(major, minor))
            out += number.to_bytes(size, "big")
            return
    raise EncodeError(f"{number} is too large for CBOR")


def _size(source: ByteReader, minor: int) -> int:
    if minor < 24:
        return minor
    if minor > 27:
        source.fail(f"unknown form {minor}", source.position - 1)
    return source.integer(1 << (minor - 24))


def _simple(source: ByteReader, minor: int) -> object:
    if minor in (20, 21):
        return minor == 21
    if minor in (22, 23):  # null and undefined
        return None
    if minor == 25:
        return source.floating(_HALF_FLOAT)
    if minor == 26:
        return Float(source.floating(BE_FLOAT))
    if minor == 27:
        return source.floating(BE_DOUBLE)
    source.fail(f"unknown simple value {minor}", source.position - 1)


def _chunks(source: ByteReader, major: int) -> object:
    pieces = []
    while (first := source.byte()) != _BREAK:
        if first >> 5 != major or first & 0x1F == _OPEN:
            source.fail("a piece of another kind", source.position - 1)
        size = _size(source, first & 0x1F)
        # Jackson cuts between characters, so each piece is text by itself.
        pieces.append(
            source.utf8(size).encode() if major == _TEXT else source.take(size)
        )
    raw = b"".join(pieces)
    return raw.decode() if major == _TEXT else raw
