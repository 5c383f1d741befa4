"""The values that the golden files of the ten versions leave out, and the rows of tests/golden/extra.jsonl.

The rows are written by ``python -m tests.interop.golden``, which has live Redissons encode these values.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from django_delayq.codecs import Codec, get_codec
from django_delayq.codecs.kryo.codec import Kryo5Codec
from django_delayq.codecs.values import (
    Byte,
    Char,
    Float,
    JavaEnum,
    JavaList,
    JavaMap,
    Long,
    Short,
)
from tests.codecs.vectors import DEMO_CLASSES, GOLDEN, codec_of

FILE = GOLDEN / "extra.jsonl"

KRYO, RIVER = "Kryo5Codec", "MarshallingCodec"
BOTH = (KRYO, RIVER)
#: Every codec that compresses, around a codec without dialects.
COMPRESSING = tuple(
    f"{name}(StringCodec)"
    for name in ("LZ4Codec", "LZ4CodecV2", "SnappyCodec", "SnappyCodecV2", "ZStdCodec")
)
#: How many classes are in peer/src/main/java/demo/Many.java.
MANY = 260


class Extra(NamedTuple):
    """A value that some codecs have to write."""

    codecs: tuple[str, ...]
    value: object
    #: How a row describes the value; tests/golden/README.md says how to read it.
    told: object


def _values() -> Iterator[tuple[str, Extra]]:
    # The outer list is object 0, the text object 1. Each empty list has a number as well, and compresses well.
    for count in (*range(253, 258), *range(65_533, 65_538), 70_000):
        yield (
            f"far.list.{count}",
            _of(
                (RIVER,),
                ["far", *([] for _ in range(count)), "far"],
                f"[far, {count} empty lists, far]",
            ),
        )
    for count in range(253, 258):
        yield (
            f"far.text.{count}",
            _of(
                (RIVER,),
                ["far", *map(str, range(count)), "far"],
                f"[far, the numbers to {count} as text, far]",
            ),
        )
    # River refers to a class by the distance back to it, u8 up to 256, then u16; Kryo by its number, a varint.
    for count in (126, 127, 128, 129, 254, 255, 256, 257, 258, MANY):
        yield (
            f"classes.{count}",
            _of(
                BOTH,
                [*constants(count), JavaEnum("demo.Many$E0", "B"), *constants(count)],
                f"[A of each of {count} enums, B of the first, the {count} again]",
            ),
        )
    # Kryo: 6 bits of the size plus one in the first byte, 7 in each other.
    for count in (62, 63, 64, 8190, 8191, 8192):
        yield (
            f"list.int.{count}",
            _of(BOTH, [i % 3 for i in range(count)], {"$large": count}),
        )
    yield (
        "list.mixed.300",
        _of(BOTH, mixed(300), "[Integer, Long, Double, Float, String, Boolean, …]"),
    )
    for kind, unit in UNITS.items():
        for chars in (62, 63, 64, 65, 257, 8190, 8191, 8192, 10_240, 65_537, *MEGA):
            told = {"$repeat": unit, "chars": chars}
            codecs = (KRYO,) if chars in MEGA else BOTH
            yield f"str.{kind}.{chars}", _of(codecs, (unit * chars)[:chars], told)
    yield (
        "properties",
        _of(BOTH, JavaMap({"a": "b"}, "java.util.Properties"), "{a=b}"),
    )
    yield "names", _of(BOTH, JavaList(["a", "b"], "demo.Names"), "[a, b]")
    yield "compressed.short", _of(COMPRESSING, "hello", "hello")
    yield (
        "compressed.text",
        _of(COMPRESSING, "订单-1 " * 20, {"$repeat": "订单-1 ", "chars": 100}),
    )
    yield (
        "compressed.long",
        _of(
            COMPRESSING,
            "0123456789abcdef" * 1000,
            {"$repeat": "0123456789abcdef", "chars": 16_000},
        ),
    )


def _of(codecs: tuple[str, ...], value: object, told: object) -> Extra:
    if isinstance(told, str) and not isinstance(value, str):
        name = getattr(value, "class_name", "java.util.ArrayList")
        told = {f"${name}": told}
    return Extra(codecs, value, told)


def constants(count: int) -> list[object]:
    return [JavaEnum(f"demo.Many$E{n}", "A") for n in range(count)]


def mixed(count: int) -> list[object]:
    kinds: list[Any] = [
        lambda n: n,
        lambda n: Long(n),
        lambda n: n / 2,
        lambda n: Float(n / 4),
        lambda n: f"订单-{n}",
        lambda n: n % 2 == 0,
        lambda n: None,
        lambda n: Char(chr(0x8BA2 + n)),
        lambda n: Byte(n % 128),
        lambda n: Short(-n),
        lambda n: [n, "a"],
        lambda n: {"n": n},
    ]
    return [kinds[n % len(kinds)](n) for n in range(count)]


#: Texts with characters of one, of up to two, and of three bytes.
UNITS = {"ascii": "0123456789abcdef", "latin1": "Grüße é", "zh": "订单取消"}
#: Lengths around the one from which Kryo's length plus one takes a byte more.
MEGA = (1_048_574, 1_048_575, 1_048_576)

VALUES = dict(_values())

#: The classes that have to be declared for Kryo.
CLASSES: dict[str, Any] = DEMO_CLASSES | {
    f"demo.Many$E{n}": ["A", "B"] for n in range(MANY)
}


def extra_codec(name: str, version: str) -> Codec:
    """Return the codec of a row, with the row's classes declared; for a wrapping codec, one that refuses."""
    if name == KRYO:
        return Kryo5Codec(version=version, classes=CLASSES)
    if name in COMPRESSING:
        return get_codec(name.partition("(")[0], version=version)
    return codec_of(name, version)


@cache
def rows() -> tuple[dict[str, Any], ...]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return tuple(map(json.loads, lines))
