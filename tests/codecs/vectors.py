"""The golden payloads of tests/golden, and for each label the Python value it stands for."""

import base64
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from uuid import UUID

from django_delayq.codecs import Codec, get_codec
from django_delayq.codecs.kryo.codec import Kryo5Codec
from django_delayq.codecs.river.classes import ClassLayout
from django_delayq.codecs.river.codec import MarshallingCodec
from django_delayq.codecs.values import (
    BigInteger,
    Byte,
    Char,
    Float,
    Instant,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
)

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = [
    "3.12.5",
    "3.15.0",
    "3.16.6",
    "3.20.1",
    "3.21.0",
    "3.21.1",
    "3.27.2",
    "3.40.2",
    "3.52.0",
    "4.7.0",
]


@cache
def load(version: str) -> dict[tuple[str, str], dict]:
    """Return the rows of a version by codec and label, those of older versions included."""
    rows = {}
    for older in VERSIONS[: VERSIONS.index(version) + 1]:
        text = (GOLDEN / f"{older}.jsonl").read_text(encoding="utf-8")
        meta, *lines = map(json.loads, text.strip().split("\n"))
        rows.update({(row["codec"], row["label"]): row for row in lines})
    return {key: row for key, row in rows.items() if key[0] in meta["codecs"]}


def rows_of(version: str, codec: str) -> dict[str, dict]:
    return {label: row for (name, label), row in load(version).items() if name == codec}


def versions_with(codec: str) -> Iterator[str]:
    return (version for version in VERSIONS if rows_of(version, codec))


def payload_of(row: dict) -> bytes | None:
    """Return what Redisson wrote; None where it refused to, or writes something else each time."""
    if "payload_zlib" in row:
        return zlib.decompress(base64.b64decode(row["payload_zlib"]))
    return bytes.fromhex(row["payload"]) if "payload" in row else None


def value_of(row: dict) -> object:
    """Return the value of a row with the Java types it was written with."""
    label = row["label"]
    return PYTHON[label] if label in PYTHON else _scalar(row)


def _scalar(row: dict) -> object:
    kind, value = row["type"], row["value"]
    if isinstance(value, dict):
        [(tag, text), *rest] = value.items()
        if tag == "$repeat":
            chars = rest[0][1]
            return (text * chars)[:chars]
        if tag == "$hex":
            return bytes.fromhex(text)
        if tag == "$large":
            return bytes(text) if kind == "byte[]" else [i % 3 for i in range(text)]
        value = text
    return _SCALARS[kind](value)


_SCALARS = {
    None: lambda value: value,
    "java.lang.String": str,
    "java.lang.Integer": int,
    "java.lang.Long": Long,
    "java.lang.Double": float,
    "java.lang.Float": Float,
    "java.lang.Boolean": bool,
    "java.lang.Byte": Byte,
    "java.lang.Short": Short,
    "java.lang.Character": Char,
    "java.math.BigInteger": lambda text: BigInteger(int(text)),
    "java.math.BigDecimal": Decimal,
    "java.util.UUID": UUID,
    "java.util.ArrayList": list,
}

MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
THAT_UUID = UUID("01234567-89ab-cdef-fedc-ba9876543210")
SHARED = ["x"]
PAID = JavaEnum("demo.Order$Status", "PAID")


def order(number: int, customer: str) -> JavaObject:
    return JavaObject(
        "demo.Order",
        {
            "attributes": {"n": 1, "s": "x"},
            "boxed": 300,
            "createdAt": 1700000000123,
            "customer": customer,
            "item": JavaObject(
                "demo.Order$Item", {"price": 9.5, "quantity": 2, "sku": "SKU-1"}
            ),
            "number": number,
            "paid": True,
            "status": PAID,
            "tags": ["red", "blue"],
        },
    )


def plain_person(name: str, age: int) -> JavaObject:
    return JavaObject("demo.Order$Plain", {"age": age, "name": name})


#: How `value` in a row describes values of classes that JSON lacks, and Java types inside others.
PYTHON: dict[str, object] = {
    "date": MOMENT,
    "date.0": datetime(1970, 1, 1, tzinfo=UTC),
    "instant": Instant(1700000000, 123456789),
    "instant.s": Instant(1700000000),
    "localdatetime": datetime(2024, 2, 29, 23, 59, 58, 7),
    "localdate": date(2024, 2, 29),
    "localtime": time(1, 2, 3),
    "zoneddatetime": JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00+08:00[Asia/Shanghai]"),
    "offsetdatetime": JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00+08:00"),
    "duration": timedelta(days=1, seconds=3661, milliseconds=1),
    "enum": PAID,
    "enum.jdk": JavaEnum("java.util.concurrent.TimeUnit", "SECONDS"),
    "optional": JavaValue("java.util.Optional", "x"),
    "locale": JavaValue("java.util.Locale", "zh_CN"),
    "class": JavaValue("java.lang.Class", "java.lang.String"),
    "url": JavaValue("java.net.URL", "https://example.org/a?b=c"),
    "list.of.0": JavaList([], "java.util.ImmutableCollections$ListN"),
    "list.of.1": JavaList(["a"], "java.util.ImmutableCollections$List12"),
    "list.of.3": JavaList([1, 2, 3], "java.util.ImmutableCollections$ListN"),
    "list.array.0": [],
    "list.array.str": ["a", "b", "c"],
    "list.array.int": [1, 200, -3],
    "list.array.long": [Long(1), Long(5000000000)],
    "list.array.mixed": [
        1, Long(2), 3.5, Float(0.5), "x", True, False, None, Char("c"), Byte(7), Short(8),
    ],
    "list.array.nulls": [None, None],
    "list.array.str_null": ["a", None, "b"],
    "list.array.int_null": [1, None],
    "list.array.double": [0.5, -1.5],
    "list.array.bool": [True, False],
    "list.array.big": [Decimal("1.50"), BigInteger(10), MOMENT, THAT_UUID],
    "list.asList": JavaList(["a", "b"], "java.util.Arrays$ArrayList"),
    "list.empty": JavaList([], "java.util.Collections$EmptyList"),
    "list.singleton": JavaList(["a"], "java.util.Collections$SingletonList"),
    "list.unmodifiable": JavaList(
        ["a", "b"], "java.util.Collections$UnmodifiableRandomAccessList"
    ),
    "list.linked": JavaList(["a", 1], "java.util.LinkedList"),
    "list.array.300": list(range(300)),
    "map.hash.0": JavaMap({}, "java.util.HashMap"),
    "map.hash": JavaMap({"a": 1}, "java.util.HashMap"),
    "map.linked": {
        "name": "张三", "age": 30, "vip": True, "none": None, "score": 9.5, "id": Long(5000000000),
    },
    "map.tree": JavaMap({"a": 1, "b": 2}, "java.util.TreeMap"),
    "map.of": JavaMap({"a": 1}, "java.util.ImmutableCollections$Map1"),
    "map.empty": JavaMap({}, "java.util.Collections$EmptyMap"),
    "map.singleton": JavaMap({"a": 1}, "java.util.Collections$SingletonMap"),
    "map.concurrent": JavaMap({"a": 1}, "java.util.concurrent.ConcurrentHashMap"),
    "map.intkey": JavaMap({1: "one", 2: "two"}, "java.util.HashMap"),
    "nested": {"items": [{"sku": "A", "n": 1}, {"sku": "B", "n": 2}], "tags": [["x"], []]},
    "set.hash": {"a"},
    "set.linked": JavaSet(["b", "a"], "java.util.LinkedHashSet"),
    "set.tree": JavaSet(["a", "b"], "java.util.TreeSet"),
    "set.of": JavaSet(["a"], "java.util.ImmutableCollections$Set12"),
    "set.empty": JavaSet([], "java.util.Collections$EmptySet"),
    "arr.object": JavaList([1, "a", None, Long(2)], "[Ljava.lang.Object;"),
    "arr.string": JavaList(["a", "b", None], "[Ljava.lang.String;"),
    "arr.int": JavaList([1, -1, 300], "[I"),
    "arr.long": JavaList([1, -1, 5000000000], "[J"),
    "arr.double": JavaList([0.5, 1e300], "[D"),
    "arr.bool": JavaList([True, False], "[Z"),
    "arr.integer": JavaList([1, None], "[Ljava.lang.Integer;"),
    "arr.char": JavaList(["a", "订"], "[C"),
    "arr.int2": JavaList([JavaList([1], "[I"), JavaList([2, 3], "[I")], "[[I"),
    "pojo": order(12345, "张三"),
    "pojo.nulls": JavaObject(
        "demo.Order",
        {
            "attributes": None, "boxed": None, "createdAt": 0, "customer": None, "item": None,
            "number": 0, "paid": False, "status": None, "tags": None,
        },
    ),
    "pojo.not_serializable": plain_person("Ada", 36),
    "pojo.list": [order(1, "a"), order(2, "b")],
    "pojo.in_map": JavaMap({"order": order(1, "a")}, "java.util.HashMap"),
    "shared.list": [SHARED, SHARED],
    "shared.string": ["shared text", "shared text"],
    "equal.strings": ["same text", "same text"],
    "shared.uuid": [THAT_UUID, THAT_UUID],
    "shared.long": [Long(5000000000), Long(5000000000)],
    "shared.pojo": [
        plain_person("A", 1), plain_person("A", 1), PAID, PAID,
        JavaEnum("demo.Order$Status", "NEW"),
    ],
    "repeat.long_string": [("0123456789abcdef" * 19)[:300]] * 2,
    "repeat.map_keys": [JavaMap({"id": n}, "java.util.HashMap") for n in (1, 2, 3)],
}  # fmt: skip

#: What demo.Order looks like to Java serialization; its payloads say the same.
DEMO_LAYOUTS = {
    "demo.Order": ClassLayout(
        "demo.Order",
        42,
        (
            ("attributes", "object"),
            ("boxed", "object"),
            ("createdAt", "long"),
            ("customer", "object"),
            ("item", "object"),
            ("number", "int"),
            ("paid", "boolean"),
            ("status", "object"),
            ("tags", "object"),
        ),
    ),
    "demo.Order$Item": ClassLayout(
        "demo.Order$Item",
        7,
        (("price", "double"), ("quantity", "int"), ("sku", "object")),
    ),
}


#: The same classes, as they are declared for Kryo.
DEMO_CLASSES = {
    "demo.Order": [
        ("number", "int"),
        ("customer", "String"),
        ("item", "demo.Order$Item"),
        ("tags", "List<String>"),
        ("attributes", "Map<String,Object>"),
        ("createdAt", "long"),
        ("paid", "boolean"),
        ("status", "demo.Order$Status"),
        ("boxed", "Integer"),
    ],
    "demo.Order$Item": [("sku", "String"), ("quantity", "int"), ("price", "double")],
    "demo.Order$Status": ["NEW", "PAID", "CANCELLED"],
    "demo.Order$Plain": [("name", "String"), ("age", "int")],
}


def codec_of(name: str, version: str | None) -> Codec:
    """Return the codec of a row, with the classes of the vectors declared."""
    if name == "MarshallingCodec":
        return MarshallingCodec(classes=DEMO_LAYOUTS)
    if name == "Kryo5Codec":
        return Kryo5Codec(version=version, classes=DEMO_CLASSES)
    return get_codec(name.partition("(")[0], version=version)
