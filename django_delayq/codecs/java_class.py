"""The Java class that a Python value is written as. Codecs that name classes share this table."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from django_delayq.codecs import java_time
from django_delayq.codecs.values import (
    ARRAY_LIST,
    HASH_SET,
    INT_MAX,
    INT_MIN,
    LINKED_HASH_MAP,
    LONG_MAX,
    LONG_MIN,
    BigInteger,
    Byte,
    Char,
    Double,
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
)
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

T = TypeVar("T")


def class_of(value: object) -> str:
    """Return the Java class that a value is written as.

    Raises:
        EncodeError: Java has no class for the type of the value.
    """
    kind = type(value)
    found = _CLASSES.get(kind) or nearest(kind, _CLASSES)
    if found is None:
        raise EncodeError(
            f"{show(value)} of type {kind.__name__} has no counterpart in Java"
        )
    return found if isinstance(found, str) else found(value)


def nearest(kind: type, table: Mapping[type, T]) -> T | None:
    """Return the entry of a type, or of what it derives from: an IntEnum is an int, Django's SafeString a str."""
    return next((table[base] for base in kind.__mro__ if base in table), None)


def _class_of_int(value: int) -> str:
    if INT_MIN <= value <= INT_MAX:
        return "java.lang.Integer"
    return "java.lang.Long" if LONG_MIN <= value <= LONG_MAX else "java.math.BigInteger"


def _class_of_datetime(value: datetime) -> str:
    return java_time.LOCAL_DATE_TIME if value.tzinfo is None else "java.util.Date"


def _own_class(
    value: JavaList | JavaMap | JavaSet | JavaEnum | JavaValue | JavaObject,
) -> str:
    default = LINKED_HASH_MAP if isinstance(value, JavaMap) else ARRAY_LIST
    return value.class_name or default


_CLASSES: dict[type, str | Callable[[Any], str]] = {
    bool: "java.lang.Boolean",
    str: "java.lang.String",
    Char: "java.lang.Character",
    int: _class_of_int,
    Integer: "java.lang.Integer",
    Byte: "java.lang.Byte",
    Short: "java.lang.Short",
    Long: "java.lang.Long",
    BigInteger: "java.math.BigInteger",
    float: "java.lang.Double",
    Double: "java.lang.Double",
    Float: "java.lang.Float",
    Decimal: "java.math.BigDecimal",
    bytes: "[B",
    bytearray: "[B",
    memoryview: "[B",
    UUID: "java.util.UUID",
    datetime: _class_of_datetime,
    date: java_time.LOCAL_DATE,
    time: java_time.LOCAL_TIME,
    timedelta: java_time.DURATION,
    Instant: java_time.INSTANT,
    list: ARRAY_LIST,
    tuple: ARRAY_LIST,
    dict: LINKED_HASH_MAP,
    set: HASH_SET,
    frozenset: HASH_SET,
    **dict.fromkeys(
        (JavaList, JavaMap, JavaSet, JavaEnum, JavaValue, JavaObject), _own_class
    ),
}
