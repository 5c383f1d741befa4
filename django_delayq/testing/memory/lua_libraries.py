"""What scripts find beside the commands of a server: its libraries ``struct`` and ``cmsgpack``, as far as ours use them."""

import re
import struct as native
from functools import lru_cache
from typing import Any, Literal

import msgspec

#: One item of a format: a switch of the byte order, or a type with its size.
_ITEM = re.compile(rb"([<>=!])|([a-zA-Z])(\d*)| ")
_Order = Literal["little", "big"]
_Item = tuple[bytes, int, _Order]
_SIZES = {b"B": 1, b"b": 1, b"H": 2, b"h": 2, b"L": 8, b"l": 8, b"I": 4, b"i": 4}


@lru_cache(maxsize=256)
def _items(format: bytes) -> "list[_Item]":
    """Return the type, the size and the byte order of each value."""
    found: list[_Item] = []
    order: _Order = "little"
    at = 0
    while at < len(format):
        match = _ITEM.match(format, at)
        if match is None:
            raise ValueError(f"struct has no {format[at:]!r}")
        at = match.end()
        switch, kind, size = match.groups()
        if switch:
            order = "big" if switch == b">" else "little"
        elif kind == b"c":
            found.append((b"c", int(size) if size else 1, order))
        elif kind == b"d":
            found.append((b"d", 8, order))
        elif kind:
            found.append((kind, int(size) if size else _SIZES[kind], order))
    return found


def pack(format: bytes, *values: Any) -> bytes:
    """Do as struct.pack."""
    parts = []
    given = iter(values)
    for kind, size, order in _items(format):
        value = next(given)
        if kind == b"c":
            text: bytes = value if isinstance(value, bytes) else b"%d" % value
            if size and len(text) < size:
                raise ValueError("string too short")
            parts.append(text[:size] if size else text)
        elif kind == b"d":
            parts.append(native.pack("<d" if order == "little" else ">d", value))
        else:
            number = int(float(value) if isinstance(value, bytes) else value)
            parts.append((number % 256**size).to_bytes(size, order))
    return b"".join(parts)


def unpack(format: bytes, data: bytes, at: float = 1) -> tuple[Any, ...]:
    """Do as struct.unpack: return the values, and where the next one begins."""
    found: list[Any] = []
    place = int(at) - 1
    for kind, size, order in _items(format):
        if kind == b"c" and not size:
            size = int(found.pop())
        if place + size > len(data):
            raise ValueError("data string too short")
        part = data[place : place + size]
        place += size
        if kind == b"c":
            found.append(part)
        elif kind == b"d":
            found.append(native.unpack("<d" if order == "little" else ">d", part)[0])
        else:
            signed = kind.islower()
            found.append(int.from_bytes(part, order, signed=signed))
    return (*found, place + 1)


def msgpack(values: list[Any]) -> bytes:
    """Do as cmsgpack.pack for a list of texts, numbers and such lists."""
    size = len(values)
    head = bytes((0x90 | size,)) if size < 16 else b"\xdc" + size.to_bytes(2, "big")
    return head + b"".join(map(_msgpacked, values))


def msgunpack(text: bytes) -> list[Any]:
    """Do as cmsgpack.unpack for a list of texts, numbers and such lists: Lua has no other numbers than floats.

    Raises:
        ValueError: it is none.
    """
    items = msgspec.msgpack.decode(text, type=list[msgspec.Raw])
    return [_msgunpacked(bytes(item)) for item in items]


def _msgunpacked(item: bytes) -> Any:
    if 0x90 <= item[0] < 0xA0 or item[0] == 0xDC:
        return msgunpack(item)
    # Not all texts are UTF-8, so they are taken as they are.
    if 0xA0 <= item[0] < 0xC0:
        return item[1:]
    if 0xD9 <= item[0] < 0xDC:
        return item[1 + 2 ** (item[0] - 0xD9) :]
    return msgspec.msgpack.decode(item, type=float)


def _msgpacked(value: Any) -> bytes:
    if isinstance(value, list):
        return msgpack(value)
    if isinstance(value, bytes):
        size = len(value)
        if size < 32:
            return bytes((0xA0 | size,)) + value
        if size < 256:
            return bytes((0xD9, size)) + value
        return b"\xda" + size.to_bytes(2, "big") + value
    if isinstance(value, float) and not value.is_integer():
        (short,) = native.unpack(">f", native.pack(">f", value))
        if short == value:
            return b"\xca" + native.pack(">f", value)
        return b"\xcb" + native.pack(">d", value)
    return msgspec.msgpack.encode(int(value) if isinstance(value, float) else value)
