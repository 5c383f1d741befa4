"""Jackson trees to values. A class name chooses among our own types, and never names anything to call."""

import base64
import binascii
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from uuid import UUID

from django_delayq.codecs import java_time
from django_delayq.codecs.codec import MAX_CLASS_NAME, MAX_DEPTH
from django_delayq.codecs.jackson.tree import CLASS_KEY, Dialect
from django_delayq.codecs.values import (
    ARRAY_LIST,
    LINKED_HASH_MAP,
    UNTYPED,
    BigInteger,
    Byte,
    Char,
    Float,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaValue,
    Long,
    Short,
    java_date,
    java_set,
)
from django_delayq.exceptions import DecodeError

#: A name that can be a class: a package, and a capital after its last dot; or an array. Only the
#: capital tells a class from a host name, and two host names in a String[] look like a class and its body.
_CLASS_NAME = re.compile(
    r"(?:[A-Za-z_$][\w$]*\.)+[A-Z_$][\w$]*(?:<.*>)?|\[+(?:[ZBCSIJFD]|L[\w.$]+;)"
)
_IDENTIFIER = re.compile(r"[^\W\d][\w$]*")
_SET_CLASS = re.compile(r"[^<\n]*(?:Set|[.$]SetN|[.$]Set12|KeySetView)(?:<.*>)?")
_MAP_CLASS = re.compile(
    r"(?:java\.util|com\.google\.common\.collect|org\.springframework\.util|it\.unimi\.dsi)\.[^<\n]*"
    r"(?:Map|[.$]MapN|[.$]Map1|Hashtable|Properties)(?:<.*>)?"
)
#: Classes whose text is not the constant of an enum, though it may look like one.
_TEXT_CLASSES = frozenset({
    "java.lang.Class", "java.util.Locale", "java.util.Currency", "java.nio.charset.Charset",
    "java.util.regex.Pattern", "java.io.File", "java.util.TimeZone", "java.net.URI", "java.net.URL",
    "java.lang.StringBuilder", "java.lang.StringBuffer",
})  # fmt: skip


class JsonNumber(float):
    """A number that keeps the digits it was written with, in case it is a BigDecimal."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "JsonNumber":
        self = super().__new__(cls, text)
        self.text = text
        return self


class TreeReader:
    """Reads trees of one dialect. Stateless."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def value(self, node: object, depth: int = 0) -> object:
        """Return the value of a tree.

        Raises:
            DecodeError: the tree is nested too deep, or a body does not fit the class before it.
        """
        kind = type(node)
        if kind is list:
            return self._list(node, depth)  # type: ignore[arg-type]
        if kind is dict:
            return self._dict(node, depth)  # type: ignore[arg-type]
        return float(node) if kind is JsonNumber else node  # type: ignore[arg-type]

    def _list(self, node: list[object], depth: int) -> object:
        if depth > MAX_DEPTH:
            raise DecodeError(f"nested deeper than {MAX_DEPTH} levels")
        if len(node) == 2 and self._names_a_class(node[0]):
            return self._tagged(str(node[0]), node[1], depth)
        items = self._items(node, depth)
        return JavaList(items, UNTYPED) if self.dialect.typed else items

    def _items(self, nodes: list[object], depth: int) -> list[object]:
        items = []
        # Not a comprehension: in Python 3.11 each takes one more stack frame per level.
        for node in nodes:
            items.append(self.value(node, depth + 1))
        return items

    def _names_a_class(self, name: object) -> bool:
        if not isinstance(name, str) or len(name) > MAX_CLASS_NAME:
            return False
        if self.dialect.typed:
            return _CLASS_NAME.fullmatch(name) is not None
        return self.dialect.tags_uuid and name == "java.util.UUID"

    def _tagged(self, name: str, body: object, depth: int) -> object:
        read = _SCALARS.get(name)
        if read is not None and not isinstance(body, list | dict):
            try:
                return read(body)
            except (ValueError, TypeError, InvalidOperation, binascii.Error) as error:
                raise DecodeError(f"{body!r:.80} is not a {name}: {error}") from None
        if isinstance(body, list):
            items = self._items(body, depth)
            if name == ARRAY_LIST:
                return items
            return (
                java_set(items, name)
                if _SET_CLASS.fullmatch(name)
                else JavaList(items, name)
            )
        if isinstance(body, str):
            return _constant(name, body)
        return JavaValue(name, self.value(body, depth + 1))

    def _dict(self, node: dict[object, object], depth: int) -> object:
        if depth > MAX_DEPTH:
            raise DecodeError(f"nested deeper than {MAX_DEPTH} levels")
        name = node.pop(CLASS_KEY, UNTYPED) if self.dialect.typed else LINKED_HASH_MAP
        if not isinstance(name, str) or len(name) > MAX_CLASS_NAME:
            raise DecodeError(f"{CLASS_KEY} does not name a class: {name!r:.80}")
        fields = {}
        for key, item in node.items():
            fields[key] = self.value(item, depth + 1)
        if name == LINKED_HASH_MAP:
            return fields
        if name == UNTYPED or _MAP_CLASS.fullmatch(name):
            return JavaMap(fields, name)
        return JavaObject(name, {str(key): item for key, item in fields.items()})


def _constant(name: str, text: str) -> object:
    if name in java_time.READABLE:
        try:
            return java_time.parse_java_time(name, text)
        except ValueError as error:
            raise DecodeError(f"{text!r:.80} is not a {name}: {error}") from None
    if name in _TEXT_CLASSES or not _IDENTIFIER.fullmatch(text):
        return JavaValue(name, text)
    return JavaEnum(name, text)


def _whole(body: object) -> int:
    if type(body) is int or isinstance(body, BigInteger):
        return int(body)
    raise TypeError("not a whole number")


def _number(body: object) -> float:
    # Jackson quotes NaN and Infinity in JSON.
    if isinstance(body, str) and body not in ("NaN", "Infinity", "-Infinity"):
        raise TypeError("not a number")
    if isinstance(body, bool) or not isinstance(body, int | float | str):
        raise TypeError("not a number")
    return float(body)


def _text(body: object) -> str:
    if not isinstance(body, str):
        raise TypeError("not a text")
    return body


def _decimal(body: object) -> Decimal:
    if isinstance(body, JsonNumber):
        return Decimal(body.text)
    if isinstance(body, Decimal):
        return body
    if isinstance(body, float):
        # MessagePack has no decimals: Jackson writes the double that is the same number.
        return Decimal(float.__repr__(body))
    return Decimal(_whole(body))


def _uuid(body: object) -> UUID:
    if isinstance(body, bytes):
        return UUID(bytes=body)
    text = _text(body)
    value = UUID(text)
    if str(value) != text.lower():
        raise ValueError("not written with four dashes")
    return value


def _byte_array(body: object) -> bytes:
    return (
        body
        if isinstance(body, bytes)
        else base64.b64decode(_text(body), validate=True)
    )


def _date(body: object) -> object:
    return (
        java_time.parse_date(body) if isinstance(body, str) else java_date(_whole(body))
    )


def _flag(body: object) -> bool:
    if not isinstance(body, bool):
        raise TypeError("not a truth value")
    return body


_SCALARS: dict[str, Callable[[object], object]] = {
    "java.lang.Boolean": _flag,
    "java.lang.Byte": lambda body: Byte(_whole(body)),
    "java.lang.Short": lambda body: Short(_whole(body)),
    "java.lang.Integer": _whole,
    "java.lang.Long": lambda body: Long(_whole(body)),
    "java.lang.Float": lambda body: Float(_number(body)),
    "java.lang.Double": _number,
    "java.lang.Character": lambda body: Char(_text(body)),
    "java.lang.String": _text,
    "java.math.BigInteger": lambda body: BigInteger(_whole(body)),
    "java.math.BigDecimal": _decimal,
    "java.util.Date": _date,
    "java.util.UUID": _uuid,
    "[B": _byte_array,
}
