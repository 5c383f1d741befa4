"""Values to Jackson trees: which of them carry their class, and in which shape.

Redisson sets default typing for everything that is not final. Inside a collection every number
but Integer and Double carries its class. At top level, only a Long and values of non-final classes do.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django_delayq.codecs import java_time
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.jackson.tree import CLASS_KEY, Dialect, Tagged
from django_delayq.codecs.java_class import class_of, nearest
from django_delayq.codecs.java_text import (
    decimal_text,
    double_text,
    epoch_millis,
    iso_millis,
)
from django_delayq.codecs.values import (
    ARRAY_LIST,
    HASH_SET,
    INT_MAX,
    INT_MIN,
    LINKED_HASH_MAP,
    LONG_MAX,
    LONG_MIN,
    UNTYPED,
    BigInteger,
    Byte,
    Char,
    Float,
    Instant,
    Integer,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
    in_order,
)
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

#: Where a value stands: at top level, in a collection, or where a declared type tells its class (in a
#: field of an object, or in an array of numbers).
TOP, ELEMENT, FIELD = range(3)

#: Arrays of final classes. Jackson writes these, and Java's immutable collections, without their class.
_FINAL_ARRAY = re.compile(r"\[+(?:[ZBCSIJFD]|Ljava\.lang\.(?:String|Integer|Boolean|Double|Float"
                          r"|Short|Byte|Character);)")  # fmt: skip
_FINAL_COLLECTION = "java.util.ImmutableCollections$"
#: The final classes among those of JavaValues, whose values carry no class at top level.
_FINAL_VALUES = frozenset({
    "java.lang.Class", "java.net.URI", "java.net.URL", "java.util.Currency", "java.util.Locale",
    "java.util.Optional", "java.util.regex.Pattern", java_time.OFFSET_DATE_TIME,
    java_time.ZONED_DATE_TIME,
})  # fmt: skip


class TreeWriter:
    """Writes trees of one dialect. Stateless."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def tree(self, value: object) -> object:
        """Return the tree of a value.

        Raises:
            EncodeError: the format has no such type as that of the value, or of one inside it.
        """
        return self.node(value, TOP, 0)

    def node(self, value: object, place: int, depth: int) -> object:
        """Return the tree of a value that stands ``depth`` levels down."""
        kind = type(value)
        if kind is str or kind is float or kind is bool or value is None:
            return value
        write = _WRITERS.get(kind) or nearest(kind, _WRITERS)
        if write is None:
            raise EncodeError(
                f"{show(value)} of type {kind.__name__} has no counterpart in Java's JSON"
            )
        if depth > MAX_DEPTH:
            raise EncodeError(
                f"nested deeper than {MAX_DEPTH} levels, or inside of itself"
            )
        return write(self, value, place, depth)

    def tagged(self, class_name: str, body: object, place: int = ELEMENT) -> object:
        """Put the class before a body, unless the dialect has no classes or the body stands at top level."""
        return Tagged(class_name, body) if self.dialect.typed and place != TOP else body

    def items(self, values: Iterable[object], place: int, depth: int) -> list[object]:
        """Return the trees of a collection's elements."""
        trees = []
        # Not a comprehension: in Python 3.11 each takes one more stack frame per level.
        for value in values:
            trees.append(self.node(value, place, depth + 1))
        return trees

    def entries(
        self, class_name: str, fields: Mapping[Any, object], place: int, depth: int
    ) -> dict[object, object]:
        """Return the tree of a map or object, its class first."""
        tree: dict[object, object] = {}
        if self.dialect.typed and class_name != UNTYPED:
            tree[CLASS_KEY] = class_name
        size = len(tree)
        for key, value in fields.items():
            if value is None and not self.dialect.keeps_nulls:
                continue
            tree[key if type(key) is str else self.key(key)] = self.node(
                value, place, depth + 1
            )
            size += 1
        if len(tree) != size:
            raise EncodeError(f"two keys of {show(fields)} are the same in Java's JSON")
        return tree

    def key(self, key: object) -> object:
        """Return the key of a map as the format writes it, which is mostly text."""
        match key:
            case bool():
                return "true" if key else "false"
            case str():
                return str.__str__(key)
            case int():
                whole = self.dialect.int_keys and LONG_MIN <= key <= LONG_MAX
                return int(key) if whole else int.__repr__(key)
            case float():
                return double_text(key)
            case Decimal():
                return decimal_text(key)
            case UUID():
                return str(key)
            case JavaEnum():
                return key.name
            case _:
                kind = type(key).__name__
                raise EncodeError(
                    f"{show(key)} of type {kind} cannot be a key in Java's JSON"
                )


def _int(writer: TreeWriter, value: int, place: int, depth: int) -> object:
    number = int(value)
    if place == FIELD or INT_MIN <= number <= INT_MAX:
        return number
    if LONG_MIN <= number <= LONG_MAX:
        return _long(writer, number, place, depth)
    return _big(writer, BigInteger(number), place, depth)


def _long(writer: TreeWriter, value: int, place: int, depth: int) -> object:
    alone = TOP if place == TOP and writer.dialect.jackson3 else ELEMENT
    return writer.tagged("java.lang.Long", int(value), alone)


def _small(writer: TreeWriter, value: int, place: int, depth: int) -> object:
    return writer.tagged(class_of(value), int(value), place)


def _big(writer: TreeWriter, value: object, place: int, depth: int) -> object:
    return writer.tagged(class_of(value), value)


def _float(writer: TreeWriter, value: Float, place: int, depth: int) -> object:
    bare = place == FIELD and writer.dialect.single_floats
    return writer.tagged("java.lang.Float", value, TOP if bare else place)


def _datetime(writer: TreeWriter, value: datetime, place: int, depth: int) -> object:
    if value.tzinfo is None:
        return _java_time(writer, value, place, depth)
    body = iso_millis(value) if writer.dialect.jackson3 else epoch_millis(value)
    return writer.tagged("java.util.Date", body)


def _java_time(writer: TreeWriter, value: object, place: int, depth: int) -> object:
    class_name = class_of(value)
    if not writer.dialect.jackson3:
        raise EncodeError(
            f"{value!r} would be a {class_name}, which Redisson's Jackson 2 codecs do not write;"
            " pass an aware datetime for a java.util.Date, or text"
        )
    if isinstance(value, Instant):
        text = java_time.instant_text(value)
    elif isinstance(value, timedelta):
        text = java_time.duration_text(value)
    elif isinstance(value, date | time):
        text = java_time.local_text(value)
    elif isinstance(value, JavaValue) and class_name in _ZONED:
        text = java_time.jackson_text(value)
    else:
        text = str(value.value) if isinstance(value, JavaValue) else str(value)
    return writer.tagged(class_name, text, place)


def _uuid(writer: TreeWriter, value: UUID, place: int, depth: int) -> object:
    dialect = writer.dialect
    if dialect.tags_uuid:
        return Tagged("java.util.UUID", str(value))
    return writer.tagged(
        "java.util.UUID", value.bytes if dialect.binary_uuid else str(value), place
    )


def _bytes(
    writer: TreeWriter, value: bytes | bytearray | memoryview, place: int, depth: int
) -> object:
    return (
        Tagged("[B", bytes(value))
        if place == ELEMENT and writer.dialect.typed
        else bytes(value)
    )


def _enum(writer: TreeWriter, value: JavaEnum, place: int, depth: int) -> object:
    return writer.tagged(value.class_name, value.name, place)


def _java_value(writer: TreeWriter, value: JavaValue, place: int, depth: int) -> object:
    name = value.class_name
    if name.startswith("java.time."):
        return _java_time(writer, value, place, depth)
    body = value.value
    if not isinstance(body, BigInteger | Decimal):  # these add their class themselves
        body = writer.node(body, FIELD, depth + 1)
    return writer.tagged(name, body, place if name in _FINAL_VALUES else ELEMENT)


def _list(
    writer: TreeWriter, value: Iterable[object], place: int, depth: int
) -> object:
    name = value.class_name if isinstance(value, JavaList) else ARRAY_LIST
    if name == "[C":
        return "".join(map(str, value))
    if name == UNTYPED or _FINAL_ARRAY.fullmatch(name):
        return writer.items(value, FIELD, depth)
    items = writer.items(value, ELEMENT, depth)
    return items if name.startswith(_FINAL_COLLECTION) else writer.tagged(name, items)


def _set(writer: TreeWriter, value: Set[object], place: int, depth: int) -> object:
    name = value.class_name if isinstance(value, JavaSet) else HASH_SET
    items = writer.items(in_order(value), ELEMENT, depth)
    return items if name.startswith(_FINAL_COLLECTION) else writer.tagged(name, items)


def _map(
    writer: TreeWriter, value: dict[object, object], place: int, depth: int
) -> object:
    name = value.class_name if isinstance(value, JavaMap) else LINKED_HASH_MAP
    name = UNTYPED if name.startswith(_FINAL_COLLECTION) else name
    if CLASS_KEY in value and writer.dialect.typed and name != UNTYPED:
        raise EncodeError(
            f"the key {CLASS_KEY!r} is where Jackson writes the class of a map"
        )
    return writer.entries(name, value, ELEMENT, depth)


def _object(writer: TreeWriter, value: JavaObject, place: int, depth: int) -> object:
    if CLASS_KEY in value.fields:
        raise EncodeError(f"the field {CLASS_KEY!r} is where Jackson writes the class")
    return writer.entries(value.class_name, value.fields, FIELD, depth)


_ZONED = (java_time.OFFSET_DATE_TIME, java_time.ZONED_DATE_TIME)

_Write = Callable[[TreeWriter, Any, int, int], object]
_WRITERS: dict[type, _Write] = {
    bool: lambda writer, value, place, depth: bool(value),
    str: lambda writer, value, place, depth: str.__str__(value),
    Char: lambda writer, value, place, depth: writer.tagged(
        class_of(value), str.__str__(value), place
    ),
    int: _int,
    Integer: lambda writer, value, place, depth: int(value),
    Byte: _small,
    Short: _small,
    Long: _long,
    BigInteger: _big,
    float: lambda writer, value, place, depth: float(value),
    Float: _float,
    Decimal: _big,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    UUID: _uuid,
    datetime: _datetime,
    date: _java_time,
    time: _java_time,
    timedelta: _java_time,
    Instant: _java_time,
    JavaEnum: _enum,
    JavaValue: _java_value,
    JavaObject: _object,
    list: _list,
    tuple: _list,
    dict: _map,
    set: _set,
    frozenset: _set,
    JavaSet: _set,
}
