"""The values that travel between Java and Python, and the words in which both sides tell each other what they got.

A description is [type, content], as Peer.java builds and describes it: ``["Long", "5"]``. The Python types are those of
``django_delayq.codecs.values``, so that a value says which Java type it is.
"""

import math
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django_delayq.codecs.values import (
    EPOCH,
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

Description = list[Any]

PAID = JavaEnum("demo.Order$Status", "PAID")
MOMENT = datetime(2026, 11, 21, 16, 1, 2, 345000, tzinfo=UTC)
LONGEST_INT, LONGEST_LONG = 2**31 - 1, 2**63 - 1


def order(number: int, customer: str, *, is_typed: bool = True) -> JavaObject:
    created_at = 1700000000123
    return JavaObject(
        "demo.Order",
        {
            "attributes": {"n": 1, "s": "x"},
            "boxed": 300,
            "createdAt": Long(created_at) if is_typed else created_at,
            "customer": customer,
            "item": JavaObject(
                "demo.Order$Item", {"price": 9.5, "quantity": 2, "sku": "SKU-1"}
            ),
            "number": number,
            "paid": True,
            "status": PAID if is_typed else PAID.name,
            "tags": ["red", "blue"],
        },
    )


VALUES: dict[str, object] = {
    "empty string": "",
    "one letter": "a",
    "ASCII": "hello",
    "ASCII of 64": "0123456789abcdef" * 4,
    "Chinese": "订单-1",
    "Latin-1": "Grüße",
    "emoji": "hello 😀👩‍👩‍👧",
    "NUL and controls": "a\0b\r\n\t\x7f",
    "quotes": 'say "hi" \\ / {}',
    "10 kB": "订单 order 😀 " * 640,
    "1 MB": "0123456789abcdef" * 65_536,
    "300 kB beyond ASCII": "订单😀…" * 24_000,
    "int": 42,
    "int 0": 0,
    "int -1": -1,
    "int 300": 300,
    "greatest int": LONGEST_INT,
    "least int": -LONGEST_INT - 1,
    "small long": Long(5),
    "long -1": Long(-1),
    "long beyond int": Long(LONGEST_INT + 1),
    "long 2^32": Long(2**32),
    "greatest long": Long(LONGEST_LONG),
    "least long": Long(-LONGEST_LONG - 1),
    "short": Short(-300),
    "byte": Byte(-7),
    "double": 2.5,
    "double -0.0": -0.0,
    "double 1e300": 1e300,
    "double 0.1": 0.1,
    "greatest double": 1.7976931348623157e308,
    "least double": 5e-324,
    "float": Float(0.1),
    "true": True,
    "false": False,
    "char": Char("订"),
    "no bytes": b"",
    "bytes": bytes(range(256)),
    "a zero byte": b"\0",
    "two zero bytes": b"\0\0",
    "bytes that are not text": b"\xff\xfe\x80",
    "bytes of a text": "订单".encode(),
    "CR LF": b"\r\n",
    "empty list": [],
    "list of strings": ["a", "", "订单😀"],
    "list of ints": [1, 200, -3],
    "list of longs": [Long(1), Long(5_000_000_000)],
    "mixed list": [1, Long(2), 3.5, "x", True, False],
    "list with null": ["a", None, 1],
    "linked list": JavaList(["a", 1], "java.util.LinkedList"),
    "empty map": {},
    "map": {"name": "张三", "age": 30, "vip": True, "score": 9.5, "id": Long(5_000_000_000)},
    "map with null": {"a": None, "b": 1},
    "hash map": JavaMap({"a": 1}, "java.util.HashMap"),
    "tree map": JavaMap({"a": 1, "b": 2}, "java.util.TreeMap"),
    "map of ints": JavaMap({1: "one"}, "java.util.HashMap"),
    "nested": {"items": [{"sku": "A", "n": 1}, {"sku": "B", "n": 2}], "tags": [["x"], []]},
    "deep": [[[[[[[[["deep"]]]]]]]]],
    "set": {"a"},
    "linked set": JavaSet(["b", "a"], "java.util.LinkedHashSet"),
    "int[]": JavaList([1, -1, 300], "[I"),
    "String[]": JavaList(["a", "b"], "[Ljava.lang.String;"),
    "BigDecimal": Decimal("12.340"),
    "small BigDecimal": Decimal("-1E-20"),
    "BigInteger": BigInteger(-(2**100)),
    "small BigInteger": BigInteger(7),
    "Date": MOMENT,
    "Instant": Instant(1_795_276_862, 123_456_789),
    "UUID": UUID("01234567-89ab-cdef-fedc-ba9876543210"),
    "list of these": [Decimal("1.50"), BigInteger(10), MOMENT],
    "enum": PAID,
    "POJO": order(12345, "张三"),
    "POJO in a map": {"order": order(1, "a")},
    "list of POJOs": [order(1, "a"), order(2, "b")],
}  # fmt: skip

#: The same with fields that carry no types of their own, as Jackson writes what is declared in the class.
UNTYPED = {
    "POJO": order(12345, "张三", is_typed=False),
    "POJO in a map": {"order": order(1, "a", is_typed=False)},
    "list of POJOs": [order(1, "a", is_typed=False), order(2, "b", is_typed=False)],
}

#: Not worth the time in each of the six ways through a queue.
HUGE = ("1 MB", "300 kB beyond ASCII")


def describe(value: object) -> Description:
    """Describe a Python value as Java would describe its twin."""
    match value:
        case None:
            return ["null"]
        case bool():
            return ["Boolean", value]
        case Long() | Short() | Byte() | BigInteger() | Float():
            return [type(value).__name__, str(value)]
        case Char():
            return ["Character", str.__str__(value)]
        case str():
            return ["String", value]
        case int():
            for name, bits in (("Integer", 31), ("Long", 63)):
                if -(2**bits) <= value < 2**bits:
                    return [name, str(value)]
            return ["BigInteger", str(value)]
        case float():
            return ["Double", _java_double(value)]
        case bytes():
            return ["byte[]", value.hex()]
        case Decimal():
            return ["BigDecimal", str(value)]
        case UUID():
            return ["UUID", str(value)]
        case datetime():
            return ["Date", str((value - EPOCH) // timedelta(milliseconds=1))]
        case Instant():
            return ["Instant", f"{value.seconds}:{value.nano}"]
        case JavaEnum():
            return [value.class_name, value.name]
        case JavaObject():
            fields = value.fields.items()
            return [
                value.class_name,
                {name: describe(item) for name, item in sorted(fields)},
            ]
        case JavaValue():
            return ["other", value.class_name, value.value]
        case list():
            name = getattr(value, "class_name", "java.util.ArrayList")
            return [name, [describe(item) for item in value]]
        case Set():
            name = getattr(value, "class_name", "java.util.HashSet")
            return [name, [describe(item) for item in value]]
        case dict():
            name = getattr(value, "class_name", "java.util.LinkedHashMap")
            return [
                name,
                [[describe(key), describe(item)] for key, item in value.items()],
            ]
    raise TypeError(f"nothing that travels: {value!r}")


def normal(description: Any) -> Any:
    """Bring a description into the one form that equal values share, whichever side it is from."""
    if isinstance(description, dict):
        return {name: normal(item) for name, item in description.items()}
    if not isinstance(description, list) or not description:
        return description
    kind, *content = description
    if kind in ("Double", "Float"):
        return [kind, repr(float(content[0]))]
    items = [normal(item) for item in content]
    if (
        isinstance(kind, str)
        and kind.endswith(("HashSet", "HashMap"))
        and "Linked" not in kind
    ):
        items = [sorted(items[0], key=repr)]
    return [normal(kind), *items]


def without_field_types(description: Any) -> Any:
    """Describe a demo.Order as one reads it who knows no class: its enum is the text that was written."""
    if isinstance(description, dict):
        return {name: without_field_types(item) for name, item in description.items()}
    if isinstance(description, list):
        if description == [PAID.class_name, PAID.name]:
            return ["String", PAID.name]
        return [without_field_types(item) for item in description]
    return description


def _java_double(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).replace("nan", "NaN")
