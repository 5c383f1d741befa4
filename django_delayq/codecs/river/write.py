"""Writes JBoss Marshalling's River protocol as JDK 17 and Redisson's jars write it.

Java refers to an object that it has written before by its number. So do we, for a list or object that
occurs twice in a value, and for any text that occurs twice. (Java does so for the same String object,
such as a literal, but not for an equal one; here equal values have equal bytes.)
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.decimals import split_decimal
from django_delayq.codecs.java_class import class_of, nearest
from django_delayq.codecs.java_text import epoch_millis
from django_delayq.codecs.river import java_time as river_time
from django_delayq.codecs.river import tags
from django_delayq.codecs.river.classes import (
    AS_LIST_LAYOUT,
    BIG_DECIMAL_LAYOUT,
    BIG_INTEGER_LAYOUT,
    CONCURRENT_HASH_MAP_LAYOUT,
    DATE_LAYOUT,
    HASH_MAP_LAYOUT,
    HASH_SET_LAYOUT,
    IMMUTABLE_LAYOUT,
    LINKED_HASH_MAP_LAYOUT,
    LINKED_HASH_SET_LAYOUT,
    LOCALE_LAYOUT,
    NONFAIR_SYNC_LAYOUT,
    SEGMENT_LAYOUT,
    TREE_MAP_LAYOUT,
    TREE_SET_LAYOUT,
    URL_LAYOUT,
    UUID_LAYOUT,
    Block,
    ClassLayout,
)
from django_delayq.codecs.river.output import RiverOutput
from django_delayq.codecs.river.resolve import field_names
from django_delayq.codecs.values import (
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
    in_order,
)
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_KIND_OF_LETTER = {tags.PRIMITIVES[tag]: kind for kind, tag in tags.KINDS.items()}
_LIST_TAG_OF = {name: tag for tag, name in tags.LIST_TAGS.items()}
_IMMUTABLE = "java.util.ImmutableCollections$"
_COLLECTIONS = "java.util.Collections$"
#: A ConcurrentHashMap keeps the format of Java 7, and writes these as if it were one of that time.
_SEGMENTS, _SEGMENT_SHIFT = 16, 28


class RiverWriter(RiverOutput):
    """Writes one value, once. ``layouts`` describes the classes of JavaObjects that have no layout."""

    def write(self, value: object) -> bytes:
        """Return the payload.

        Raises:
            EncodeError: the format cannot hold the value, or one inside it.
        """
        self.value(value, 0)
        return bytes(self._out)

    def value(self, value: object, depth: int) -> None:
        """Write one object with its tag."""
        out, kind = self._out, type(value)
        if value is None:
            out.append(tags.NULL)
        elif kind is bool:
            out.append(tags.TRUE if value else tags.FALSE)
        else:
            write = _WRITERS.get(kind) or nearest(kind, _WRITERS)
            if write is None:
                raise EncodeError(
                    f"{show(value)} of type {kind.__name__} has no counterpart in Java"
                )
            if depth > MAX_DEPTH:
                raise EncodeError(
                    f"nested deeper than {MAX_DEPTH} levels, or inside of itself"
                )
            write(self, value, depth)

    def _boxed(self, tag: int, kind: str, value: object) -> None:
        self._out.append(tag)
        self._primitive(kind, value)

    def _int(self, value: int, depth: int) -> None:
        if INT_MIN <= value <= INT_MAX:
            self._boxed(tags.INTEGER, "int", value)
        elif LONG_MIN <= value <= LONG_MAX:
            self._boxed(tags.LONG, "long", value)
        else:
            self._big_integer(value, depth)

    def _bytes(self, value: bytes | bytearray | memoryview, depth: int) -> None:
        if not self._is_repeated(id(value)):
            self._number(id(value))
            self._sized(tags.ARRAY_EMPTY, len(bytes(value)))
            self._out += bytes([tags.KINDS["byte"]]) + bytes(value)

    def _list(self, value: list[object] | tuple[object, ...], depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        name = class_of(value)
        if name.startswith("["):
            self._array(value, name, depth)
        elif name in _LIST_TAG_OF:
            self._number(id(value))
            self._sized(tags.COLLECTION_EMPTY, len(value))
            self._out.append(_LIST_TAG_OF[name])
            self._values(value, depth)
        elif name.startswith(_IMMUTABLE):
            self._immutable(value, 1, value, depth)
        elif name == AS_LIST_LAYOUT.class_name:
            self._as_list(value, depth)
        elif name.startswith(_COLLECTIONS):
            self._special_list(value, name.removeprefix(_COLLECTIONS), depth)
        else:
            raise EncodeError(f"MarshallingCodec cannot write a {name}; pass a list")

    def _special_list(self, value: Iterable[object], name: str, depth: int) -> None:
        items = list(value)
        if name == "EmptyList":
            self._out.append(tags.EMPTY_LIST)
            return
        self._number(id(value))
        if name == "SingletonList" and len(items) == 1:
            self._out.append(tags.SINGLETON_LIST)
            self.value(items[0], depth + 1)
        elif name == "CopiesList" and items and all(item is items[0] for item in items):
            self._sized(tags.COLLECTION_EMPTY, len(items))
            self._out.append(tags.N_COPIES)
            self.value(items[0], depth + 1)
        elif name in ("UnmodifiableList", "UnmodifiableRandomAccessList"):
            self._out.append(tags.UNMODIFIABLE_LIST)
            linked = JavaList(items, "java.util.LinkedList")
            self.value(
                self._keep(linked if name == "UnmodifiableList" else items), depth + 1
            )
        elif name == "UnmodifiableCollection":
            self._out.append(tags.UNMODIFIABLE_COLLECTION)
            self.value(self._keep(items), depth + 1)
        else:
            raise EncodeError(
                f"MarshallingCodec cannot write {items!r:.80} as a {name}"
            )

    def _array(
        self, value: list[object] | tuple[object, ...], name: str, depth: int
    ) -> None:
        component = name[1:]
        if component in _KIND_OF_LETTER:
            self._number(id(value))
            self._sized(tags.ARRAY_EMPTY, len(value))
            kind = _KIND_OF_LETTER[component]
            self._out.append(tags.KINDS[kind])
            if kind == "boolean":
                bits = sum(1 << i for i, item in enumerate(value) if item)
                self._out += bits.to_bytes((len(value) + 7) // 8, "little")
            else:
                for item in value:
                    self._primitive(kind, item, f"an element of {name}")
            return
        self._sized(tags.ARRAY_EMPTY, len(value))
        self._class(component.removeprefix("L").removesuffix(";"), value)
        self._number(id(value))
        self._values(value, depth)

    def _as_list(self, value: list[object] | tuple[object, ...], depth: int) -> None:
        kinds = {type(item) for item in value}
        component = {frozenset([str]): "String", frozenset([int]): "Integer"}.get(
            frozenset(kinds), "Object"
        )
        array = JavaList(value, f"[Ljava.lang.{component};")
        self._object(value, AS_LIST_LAYOUT, {"a": self._keep(array)}, (), depth)

    def _set(self, value: Set[object], depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        name = class_of(value)
        items = in_order(value)
        if name in (HASH_SET, LINKED_HASH_SET_LAYOUT.class_name):
            layout = HASH_SET_LAYOUT if name == HASH_SET else LINKED_HASH_SET_LAYOUT
            block = struct.pack(">ifi", _capacity(len(items)), 0.75, len(items))
            self._object(value, layout, {}, (Block(block), *items), depth)
        elif name == TREE_SET_LAYOUT.class_name:
            block = len(items).to_bytes(4, "big")
            self._object(
                value, TREE_SET_LAYOUT, {}, (None, Block(block), *items), depth
            )
        elif name.startswith(_IMMUTABLE):
            self._immutable(value, 2, items, depth)
        elif name == f"{_COLLECTIONS}EmptySet":
            self._out.append(tags.EMPTY_SET)
        elif name == f"{_COLLECTIONS}SingletonSet" and len(items) == 1:
            self._number(id(value))
            self._out.append(tags.SINGLETON_SET)
            self.value(items[0], depth + 1)
        elif name in _UNMODIFIABLE_SETS:
            tag, inner = _UNMODIFIABLE_SETS[name]
            self._number(id(value))
            self._out.append(tag)
            self.value(self._keep(JavaSet(items, inner)), depth + 1)
        elif name == "java.util.EnumSet" and items and isinstance(items[0], JavaEnum):
            self._sized(tags.COLLECTION_EMPTY, len(items))
            self._out.append(tags.ENUM_SET_PROXY)
            self._enum_class(items[0].class_name)
            self._number(id(value))
            self._values(items, depth)
        else:
            raise EncodeError(
                f"MarshallingCodec cannot write {items!r:.80} as a {name}"
            )

    def _map(self, value: dict[object, object], depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        name = class_of(value)
        flat = [part for pair in value.items() for part in pair]
        if name in (LINKED_HASH_MAP, HASH_MAP_LAYOUT.class_name):
            capacity = _capacity(len(value))
            fields = {
                "accessOrder": False,
                "loadFactor": 0.75,
                "threshold": capacity * 3 // 4 if value else 0,
            }
            block = Block(struct.pack(">ii", capacity, len(value)))
            plain = name == HASH_MAP_LAYOUT.class_name
            layout = HASH_MAP_LAYOUT if plain else LINKED_HASH_MAP_LAYOUT
            self._object(value, layout, fields, (block, *flat), depth)
        elif name == TREE_MAP_LAYOUT.class_name:
            block = Block(len(value).to_bytes(4, "big"))
            self._object(
                value, TREE_MAP_LAYOUT, {"comparator": None}, (block, *flat), depth
            )
        elif name == CONCURRENT_HASH_MAP_LAYOUT.class_name:
            self._concurrent_map(value, flat, depth)
        elif name.startswith(_IMMUTABLE):
            self._immutable(value, 3, flat, depth)
        elif name == f"{_COLLECTIONS}EmptyMap":
            self._out.append(tags.EMPTY_MAP)
        elif name == f"{_COLLECTIONS}SingletonMap" and len(value) == 1:
            self._number(id(value))
            self._out.append(tags.SINGLETON_MAP)
            self._values(flat, depth)
        elif name in _UNMODIFIABLE_MAPS:
            tag, inner = _UNMODIFIABLE_MAPS[name]
            self._number(id(value))
            self._out.append(tag)
            self.value(self._keep(JavaMap(value, inner)), depth + 1)
        elif name in ("java.util.Hashtable", "java.util.IdentityHashMap"):
            self._number(id(value))
            self._sized(tags.COLLECTION_EMPTY, len(value))
            self._out.append(
                tags.HASHTABLE if name.endswith("table") else tags.IDENTITY_HASH_MAP
            )
            self._values(flat, depth)
        else:
            raise EncodeError(f"MarshallingCodec cannot write a {name}; pass a dict")

    def _concurrent_map(
        self, value: dict[object, object], flat: list[object], depth: int
    ) -> None:
        segments = [
            JavaObject(
                SEGMENT_LAYOUT.class_name,
                {
                    "sync": JavaObject(
                        NONFAIR_SYNC_LAYOUT.class_name,
                        {"state": 0},
                        NONFAIR_SYNC_LAYOUT,
                    ),
                    "loadFactor": 0.75,
                },
                SEGMENT_LAYOUT,
            )
            for _ in range(_SEGMENTS)
        ]
        fields = {
            "segmentMask": _SEGMENTS - 1,
            "segmentShift": _SEGMENT_SHIFT,
            "segments": self._keep(
                JavaList(segments, f"[L{SEGMENT_LAYOUT.class_name};")
            ),
        }
        written = (*flat, None, None)
        self._object(value, CONCURRENT_HASH_MAP_LAYOUT, fields, written, depth)

    def _immutable(
        self, value: object, tag: int, items: Iterable[object], depth: int
    ) -> None:
        items = list(items)
        block = Block(len(items).to_bytes(4, "big"))
        self._object(value, IMMUTABLE_LAYOUT, {"tag": tag}, (block, *items), depth)

    def _values(self, values: Iterable[object], depth: int) -> None:
        for value in values:
            self.value(value, depth + 1)

    def _object(
        self,
        key: object,
        layout: ClassLayout,
        fields: Mapping[str, object],
        written: tuple[object, ...],
        depth: int,
    ) -> None:
        """Write an object of a JDK class; only its topmost class writes data of its own."""
        self._out.append(tags.NEW_OBJECT)
        self._layout(layout, depth)
        self._number(id(key))
        for level in layout.chain():
            for name, kind in level.fields:
                self._field(level, name, kind, fields[name], depth)
            if level.writes_object:
                self._annotation(written, depth)

    def _java_object(self, value: JavaObject, depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        layout = value.layout if isinstance(value.layout, ClassLayout) else None
        layout = layout or self._layouts.get(value.class_name)
        if layout is None:
            raise EncodeError(
                f"no layout of {value.class_name} is known: pass"
                f" MarshallingCodec(classes={{{value.class_name!r}: ClassLayout(…)}})"
            )
        names = field_names(layout)
        expected = {name for level in names for name in level}
        if layout.is_external:
            expected = set(value.fields)
        if expected != set(value.fields):
            odd = sorted(expected ^ set(value.fields))
            raise EncodeError(
                f"{value.class_name} has other fields than its layout: {odd}"
            )
        self._out.append(tags.NEW_OBJECT)
        if layout.is_external:
            self._external_class(layout)
            self._number(id(value))
            for part in value.fields.values():
                self._annotation(part, depth)
            return
        self._layout(layout, depth)
        self._number(id(value))
        for level, own in zip(layout.chain(), names, strict=True):
            for (_, kind), name in zip(level.fields, own, strict=False):
                self._field(level, name, kind, value.fields[name], depth)
            if level.writes_object:
                self._annotation(value.fields[own[-1]], depth)

    def _field(
        self, level: ClassLayout, name: str, kind: str, value: object, depth: int
    ) -> None:
        if kind == "object":
            self.value(value, depth + 1)
        else:
            self._primitive(kind, value, f"{level.class_name}.{name}")

    def _annotation(self, written: object, depth: int) -> None:
        if not isinstance(written, tuple):
            raise EncodeError(
                f"what a class wrote by itself must be a tuple, not {written!r:.80}"
            )
        for part in written:
            if isinstance(part, Block):
                self._block(part)
            else:
                self.value(part, depth + 1)
        self._out.append(tags.END_BLOCK)

    def _enum(self, value: JavaEnum, depth: int) -> None:
        if not self._is_repeated(value):
            self._out.append(tags.NEW_OBJECT)
            self._enum_class(value.class_name)
            self._long_text(value.name)
            self._number(value)

    def _big_integer(self, value: int, depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        magnitude = abs(value)
        fields = {
            "bitCount": -1,
            "bitLength": -1,
            "firstNonzeroByteNum": -2,
            "lowestSetBit": -2,
            "magnitude": self._keep(
                magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "big")
            ),
            "signum": (value > 0) - (value < 0),
        }
        self._object(value, BIG_INTEGER_LAYOUT, fields, (), depth)

    def _decimal(self, value: Decimal, depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        unscaled, scale = split_decimal(value)
        fields = {"intVal": self._keep(BigInteger(unscaled)), "scale": scale}
        self._object(value, BIG_DECIMAL_LAYOUT, fields, (), depth)

    def _uuid(self, value: UUID, depth: int) -> None:
        if not self._is_repeated(id(value)):
            most, least = struct.unpack(">qq", value.bytes)
            fields = {"leastSigBits": least, "mostSigBits": most}
            self._object(value, UUID_LAYOUT, fields, (), depth)

    def _datetime(self, value: datetime, depth: int) -> None:
        if value.tzinfo is None:
            self._java_time(value, depth)
        elif not self._is_repeated(id(value)):
            self._date(value, epoch_millis(value), depth)

    def _date(self, key: object, millis: int, depth: int) -> None:
        block = Block(millis.to_bytes(8, "big", signed=True))
        self._object(key, DATE_LAYOUT, {}, (block,), depth)

    def _java_time(self, value: object, depth: int) -> None:
        if not self._is_repeated(id(value)):
            block = Block(river_time.write(value))
            self._out.append(tags.NEW_OBJECT)
            self._external_class(
                ClassLayout(river_time.CLASS_NAME, river_time.UID, is_external=True)
            )
            self._number(id(value))
            self._annotation((block,), depth)

    def _java_value(self, value: JavaValue, depth: int) -> None:
        name, said = value.class_name, value.value
        if name.startswith("java.time."):
            self._java_time(value, depth)
        elif name == "java.lang.Class" and said in tags.TAG_OF_CLASS:
            self._out.append(tags.TAG_OF_CLASS[str(said)])
        elif self._is_repeated(id(value)):
            pass
        elif name == "java.util.Date" and isinstance(said, int):
            self._date(value, said, depth)
        elif name == LOCALE_LAYOUT.class_name and isinstance(said, str):
            self._locale(value, said, depth)
        elif name == URL_LAYOUT.class_name and isinstance(said, str):
            self._url(value, said, depth)
        else:
            raise EncodeError(f"MarshallingCodec cannot write {value!r:.120}")

    def _locale(self, key: object, text: str, depth: int) -> None:
        language, _, country = text.partition("_")
        fields = {
            "country": country,
            "extensions": "",
            "hashcode": -1,
            "language": language,
            "script": "",
            "variant": "",
        }
        self._object(key, LOCALE_LAYOUT, fields, (), depth)

    def _url(self, key: object, text: str, depth: int) -> None:
        parts = urlsplit(text)
        if parts.port is not None or "@" in parts.netloc or parts.fragment:
            raise EncodeError(
                f"MarshallingCodec cannot write the URL {text!r}; pass text"
            )
        fields = {
            "authority": parts.netloc,
            "file": parts.path + (f"?{parts.query}" if parts.query else ""),
            "hashCode": -1,
            "host": parts.netloc,
            "port": -1,
            "protocol": parts.scheme,
            "ref": None,
        }
        self._object(key, URL_LAYOUT, fields, (), depth)


def _capacity(size: int) -> int:
    """Return the number of buckets of a HashMap that grew to a size: 16 at first, at most three quarters full."""
    capacity = 16
    while size * 4 > capacity * 3:
        capacity *= 2
    return capacity


_UNMODIFIABLE_SETS = {
    f"{_COLLECTIONS}UnmodifiableSet": (
        tags.UNMODIFIABLE_SET,
        LINKED_HASH_SET_LAYOUT.class_name,
    ),
    f"{_COLLECTIONS}UnmodifiableSortedSet": (
        tags.UNMODIFIABLE_SORTED_SET,
        TREE_SET_LAYOUT.class_name,
    ),
}
_UNMODIFIABLE_MAPS = {
    f"{_COLLECTIONS}UnmodifiableMap": (tags.UNMODIFIABLE_MAP, LINKED_HASH_MAP),
    f"{_COLLECTIONS}UnmodifiableSortedMap": (
        tags.UNMODIFIABLE_SORTED_MAP,
        TREE_MAP_LAYOUT.class_name,
    ),
}

_Write = Callable[[RiverWriter, Any, int], None]
_WRITERS: dict[type, _Write] = {
    str: RiverWriter._text,
    Char: lambda writer, value, depth: writer._boxed(tags.CHARACTER, "char", value),
    int: RiverWriter._int,
    Integer: RiverWriter._int,
    Byte: lambda writer, value, depth: writer._boxed(tags.BYTE, "byte", value),
    Short: lambda writer, value, depth: writer._boxed(tags.SHORT, "short", value),
    Long: lambda writer, value, depth: writer._boxed(tags.LONG, "long", value),
    BigInteger: RiverWriter._big_integer,
    float: lambda writer, value, depth: writer._boxed(tags.DOUBLE, "double", value),
    Double: lambda writer, value, depth: writer._boxed(tags.DOUBLE, "double", value),
    Float: lambda writer, value, depth: writer._boxed(tags.FLOAT, "float", value),
    Decimal: RiverWriter._decimal,
    bytes: RiverWriter._bytes,
    bytearray: RiverWriter._bytes,
    memoryview: RiverWriter._bytes,
    UUID: RiverWriter._uuid,
    datetime: RiverWriter._datetime,
    date: RiverWriter._java_time,
    time: RiverWriter._java_time,
    timedelta: RiverWriter._java_time,
    Instant: RiverWriter._java_time,
    JavaEnum: RiverWriter._enum,
    JavaValue: RiverWriter._java_value,
    JavaObject: RiverWriter._java_object,
    list: RiverWriter._list,
    tuple: RiverWriter._list,
    dict: RiverWriter._map,
    set: RiverWriter._set,
    frozenset: RiverWriter._set,
    JavaSet: RiverWriter._set,
}
