"""JBoss Marshalling's River protocol, written as the JDK 17 and Redisson's jars write it.

Java names an object it has written before by its number, and so do we: a list or object that stands
in a value twice, and any text that is there twice. (Java does so for the same String object, as
literals are, not for an equal one; here equal values shall have equal bytes.)
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django_delayq.exceptions import EncodeError
from django_delayq.wire.codecs import java_time_ser
from django_delayq.wire.codecs.binary import java_utf8
from django_delayq.wire.codecs.codec import MAX_DEPTH
from django_delayq.wire.codecs.java_text import epoch_millis, utf16_units
from django_delayq.wire.codecs.river_classes import (
    ARRAY_CLASS,
    ARRAY_EMPTY,
    ARRAY_LIST,
    AS_LIST_LAYOUT,
    BIG_DECIMAL_LAYOUT,
    BIG_INTEGER_LAYOUT,
    BLOCK_SMALL,
    BYTE,
    CHARACTER,
    CLASS_REPEAT_FAR,
    CLASS_REPEAT_NEAR,
    COLLECTION_EMPTY,
    CONCURRENT_HASH_MAP_LAYOUT,
    DATE_LAYOUT,
    DOUBLE,
    EMPTY_LIST,
    EMPTY_MAP,
    EMPTY_SET,
    END_BLOCK,
    ENUM_CLASS,
    ENUM_SET_PROXY,
    EXTERNALIZABLE,
    FALSE,
    FLOAT,
    HASH_MAP_LAYOUT,
    HASH_SET_LAYOUT,
    HASHTABLE,
    IDENTITY_HASH_MAP,
    IMMUTABLE_LAYOUT,
    INTEGER,
    KINDS,
    LINKED_HASH_MAP_LAYOUT,
    LINKED_HASH_SET_LAYOUT,
    LIST_TAGS,
    LOCALE_LAYOUT,
    LONG,
    N_COPIES,
    NEW_OBJECT,
    NONFAIR_SYNC_LAYOUT,
    NULL,
    OBJECT_CLASS,
    PRIMITIVES,
    REPEAT_FAR,
    REPEAT_NEAR,
    SEGMENT_LAYOUT,
    SERIALIZABLE,
    SHORT,
    SINGLETON_LIST,
    SINGLETON_MAP,
    SINGLETON_SET,
    STRING_EMPTY,
    TAG_OF_CLASS,
    TREE_MAP_LAYOUT,
    TREE_SET_LAYOUT,
    TRUE,
    UNMODIFIABLE_COLLECTION,
    UNMODIFIABLE_LIST,
    UNMODIFIABLE_MAP,
    UNMODIFIABLE_SET,
    UNMODIFIABLE_SORTED_MAP,
    UNMODIFIABLE_SORTED_SET,
    URL_LAYOUT,
    UUID_LAYOUT,
    VERSION,
    WRITE_OBJECT,
    Block,
    ClassLayout,
)
from django_delayq.wire.codecs.river_resolve import field_names
from django_delayq.wire.codecs.values import (
    ARRAY_LIST as ARRAY_LIST_CLASS,
)
from django_delayq.wire.codecs.values import (
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

_PACK = {
    "boolean": struct.Struct(">?"),
    "byte": struct.Struct(">b"),
    "short": struct.Struct(">h"),
    "int": struct.Struct(">i"),
    "long": struct.Struct(">q"),
    "char": struct.Struct(">H"),
    "float": struct.Struct(">f"),
    "double": struct.Struct(">d"),
}
_KIND_OF_LETTER = {PRIMITIVES[tag]: kind for kind, tag in KINDS.items()}
_LIST_TAG_OF = {name: tag for tag, name in LIST_TAGS.items()}
_IMMUTABLE = "java.util.ImmutableCollections$"
_COLLECTIONS = "java.util.Collections$"
#: What a ConcurrentHashMap pretends to have been in Java 7, whose format it keeps.
_SEGMENTS, _SEGMENT_SHIFT = 16, 28


class RiverWriter:
    """Writes one value, once. ``layouts`` describes the classes of JavaObjects without one."""

    def __init__(self, layouts: Mapping[str, ClassLayout]) -> None:
        self._layouts = layouts
        self._out = bytearray([VERSION])
        #: Number of each object written: texts and enums by value, all else by identity.
        self._objects: dict[object, int] = {}
        self._classes: dict[str, int] = {}
        self._count = 0
        #: Holds what was built on the way, so that no two objects of a value share an id.
        self._alive: list[object] = []

    def write(self, value: object) -> bytes:
        """Return the payload.

        Raises:
            EncodeError: the value, or one inside it, has no form here.
        """
        self.value(value, 0)
        return bytes(self._out)

    def value(self, value: object, depth: int) -> None:
        """Write one object with its tag."""
        out, kind = self._out, type(value)
        if value is None:
            out.append(NULL)
        elif kind is bool:
            out.append(TRUE if value else FALSE)
        else:
            write = _WRITERS.get(kind) or _writer_of(kind)
            if write is None:
                raise EncodeError(
                    f"{value!r:.80} of type {kind.__name__} has no form in Java"
                )
            if depth > MAX_DEPTH:
                raise EncodeError(
                    f"nested deeper than {MAX_DEPTH} levels, or inside of itself"
                )
            write(self, value, depth)

    # Numbering.

    def _is_repeated(self, key: object) -> bool:
        """Write the number of an object, if it has one."""
        index = self._objects.get(key)
        if index is None:
            return False
        self._back(self._count - index, index, REPEAT_NEAR, REPEAT_FAR)
        return True

    def _back(self, distance: int, index: int, near: int, far: int) -> None:
        if distance <= 1 << 8:
            self._out += bytes([near, (1 << 8) - distance & 0xFF])
        elif distance <= 1 << 16:
            self._out += bytes([near + 1]) + ((1 << 16) - distance & 0xFFFF).to_bytes(
                2, "big"
            )
        else:
            self._out += bytes([far]) + index.to_bytes(4, "big")

    def _number(self, key: object) -> None:
        self._objects[key] = self._count
        self._count += 1

    def _keep(self, built: object) -> object:
        self._alive.append(built)
        return built

    # Texts, numbers and sizes.

    def _sized(self, first: int, size: int) -> None:
        """Write the tag for a size, out of four from ``first`` on, and the size.

        Shape: none; u8, 256 as 0; u16, 65536 as 0; u32.
        """
        out = self._out
        if size == 0:
            out.append(first)
        elif size <= 1 << 8:
            out += bytes([first + 1, size & 0xFF])
        elif size <= 1 << 16:
            out += bytes([first + 2]) + (size & 0xFFFF).to_bytes(2, "big")
        else:
            out += bytes([first + 3]) + size.to_bytes(4, "big")

    def _text(self, value: str, depth: int) -> None:
        text = str.__str__(value)
        if not text:
            self._out.append(STRING_EMPTY)
        elif not self._is_repeated(text):
            self._sized(STRING_EMPTY, utf16_units(text))
            self._out += _modified_utf8(text)
            self._number(text)

    def _long_text(self, text: str) -> None:
        self._out += utf16_units(text).to_bytes(4, "big") + _modified_utf8(text)

    def _primitive(self, kind: str, value: Any, what: str = "a value") -> None:
        try:
            self._out += _PACK[kind].pack(ord(value) if kind == "char" else value)
        except (struct.error, TypeError, OverflowError) as error:
            raise EncodeError(f"{what} is no {kind}: {value!r:.80} ({error})") from None

    def _boxed(self, tag: int, kind: str, value: object) -> None:
        self._out.append(tag)
        self._primitive(kind, value)

    def _int(self, value: int, depth: int) -> None:
        if INT_MIN <= value <= INT_MAX:
            self._boxed(INTEGER, "int", value)
        elif LONG_MIN <= value <= LONG_MAX:
            self._boxed(LONG, "long", value)
        else:
            self._big_integer(value, depth)

    # Arrays and collections.

    def _bytes(self, value: bytes | bytearray | memoryview, depth: int) -> None:
        if not self._is_repeated(id(value)):
            self._number(id(value))
            self._sized(ARRAY_EMPTY, len(bytes(value)))
            self._out += bytes([KINDS["byte"]]) + bytes(value)

    def _list(self, value: list[object] | tuple[object, ...], depth: int) -> None:
        if self._is_repeated(id(value)):
            return
        name = value.class_name if isinstance(value, JavaList) else ARRAY_LIST_CLASS
        if name.startswith("["):
            self._array(value, name, depth)
        elif name == UNTYPED or name in _LIST_TAG_OF:
            self._number(id(value))
            self._sized(COLLECTION_EMPTY, len(value))
            self._out.append(_LIST_TAG_OF.get(name, ARRAY_LIST))
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
            self._out.append(EMPTY_LIST)
            return
        self._number(id(value))
        if name == "SingletonList" and len(items) == 1:
            self._out.append(SINGLETON_LIST)
            self.value(items[0], depth + 1)
        elif name == "CopiesList" and items and all(item is items[0] for item in items):
            self._sized(COLLECTION_EMPTY, len(items))
            self._out.append(N_COPIES)
            self.value(items[0], depth + 1)
        elif name in ("UnmodifiableList", "UnmodifiableRandomAccessList"):
            self._out.append(UNMODIFIABLE_LIST)
            linked = JavaList(items, "java.util.LinkedList")
            self.value(
                self._keep(linked if name == "UnmodifiableList" else items), depth + 1
            )
        elif name == "UnmodifiableCollection":
            self._out.append(UNMODIFIABLE_COLLECTION)
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
            self._sized(ARRAY_EMPTY, len(value))
            kind = _KIND_OF_LETTER[component]
            self._out.append(KINDS[kind])
            if kind == "boolean":
                bits = sum(1 << i for i, item in enumerate(value) if item)
                self._out += bits.to_bytes((len(value) + 7) // 8, "little")
            else:
                for item in value:
                    self._primitive(kind, item, f"an element of {name}")
            return
        self._sized(ARRAY_EMPTY, len(value))
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
        name = value.class_name if isinstance(value, JavaSet) else HASH_SET
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
            self._out.append(EMPTY_SET)
        elif name == f"{_COLLECTIONS}SingletonSet" and len(items) == 1:
            self._number(id(value))
            self._out.append(SINGLETON_SET)
            self.value(items[0], depth + 1)
        elif name in _UNMODIFIABLE_SETS:
            tag, inner = _UNMODIFIABLE_SETS[name]
            self._number(id(value))
            self._out.append(tag)
            self.value(self._keep(JavaSet(items, inner)), depth + 1)
        elif name == "java.util.EnumSet" and items and isinstance(items[0], JavaEnum):
            self._sized(COLLECTION_EMPTY, len(items))
            self._out.append(ENUM_SET_PROXY)
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
        name = value.class_name if isinstance(value, JavaMap) else LINKED_HASH_MAP
        flat = [part for pair in value.items() for part in pair]
        if name in (UNTYPED, LINKED_HASH_MAP, HASH_MAP_LAYOUT.class_name):
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
            self._out.append(EMPTY_MAP)
        elif name == f"{_COLLECTIONS}SingletonMap" and len(value) == 1:
            self._number(id(value))
            self._out.append(SINGLETON_MAP)
            self._values(flat, depth)
        elif name in _UNMODIFIABLE_MAPS:
            tag, inner = _UNMODIFIABLE_MAPS[name]
            self._number(id(value))
            self._out.append(tag)
            self.value(self._keep(JavaMap(value, inner)), depth + 1)
        elif name in ("java.util.Hashtable", "java.util.IdentityHashMap"):
            self._number(id(value))
            self._sized(COLLECTION_EMPTY, len(value))
            self._out.append(HASHTABLE if name.endswith("table") else IDENTITY_HASH_MAP)
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

    # Objects.

    def _object(
        self,
        key: object,
        layout: ClassLayout,
        fields: Mapping[str, object],
        written: tuple[object, ...],
        depth: int,
    ) -> None:
        """Write an object of a class of the JDK; the topmost class is the one that writes."""
        self._out.append(NEW_OBJECT)
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
        self._out.append(NEW_OBJECT)
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
                f"what a class wrote by itself is a tuple, not {written!r:.80}"
            )
        for part in written:
            if isinstance(part, Block):
                self._block(part)
            else:
                self.value(part, depth + 1)
        self._out.append(END_BLOCK)

    def _block(self, block: bytes) -> None:
        width = 1 if len(block) < 1 << 8 else 2 if len(block) < 1 << 16 else 4
        tag = BLOCK_SMALL + (1, 2, 4).index(width)
        self._out += bytes([tag]) + len(block).to_bytes(width, "big") + block

    def _enum(self, value: JavaEnum, depth: int) -> None:
        if not self._is_repeated(value):
            self._out.append(NEW_OBJECT)
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
            block = Block(java_time_ser.write(value))
            self._out.append(NEW_OBJECT)
            self._external_class(
                ClassLayout(
                    java_time_ser.CLASS_NAME, java_time_ser.UID, is_external=True
                )
            )
            self._number(id(value))
            self._annotation((block,), depth)

    def _java_value(self, value: JavaValue, depth: int) -> None:
        name, said = value.class_name, value.value
        if name.startswith("java.time."):
            self._java_time(value, depth)
        elif name == "java.lang.Class" and said in TAG_OF_CLASS:
            self._out.append(TAG_OF_CLASS[str(said)])
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

    # Classes.

    def _is_known_class(self, name: str) -> bool:
        index = self._classes.get(name)
        if index is None:
            return False
        distance = len(self._classes) - index
        self._back(distance, index, CLASS_REPEAT_NEAR, CLASS_REPEAT_FAR)
        return True

    def _layout(self, layout: ClassLayout, depth: int) -> None:
        """Write a Serializable class: its name, its fields, its superclass."""
        # A loop, not a recursion: the superclass comes last.
        level: ClassLayout | None = layout
        while level is not None:
            if self._is_known_class(level.class_name):
                return
            self._out.append(WRITE_OBJECT if level.writes_object else SERIALIZABLE)
            self._text(level.class_name, depth)
            self._primitive(
                "long", level.uid, f"the serialVersionUID of {level.class_name}"
            )
            self._classes[level.class_name] = len(self._classes)
            self._out += len(level.fields).to_bytes(4, "big")
            for name, kind in level.fields:
                self._text(name, depth)
                self._out += bytes([KINDS.get(kind, OBJECT_CLASS), 0])
            level = level.parent
        self._out.append(OBJECT_CLASS)

    def _external_class(self, layout: ClassLayout) -> None:
        if not self._is_known_class(layout.class_name):
            self._out.append(EXTERNALIZABLE)
            self._long_text(layout.class_name)
            self._primitive("long", layout.uid)
            self._classes[layout.class_name] = len(self._classes)

    def _enum_class(self, name: str) -> None:
        if not self._is_known_class(name):
            self._out.append(ENUM_CLASS)
            self._long_text(name)
            self._classes[name] = len(self._classes)

    def _class(self, name: str, items: Iterable[object]) -> None:
        """Write the class of an array's elements, finding it by what is in the array."""
        if name in TAG_OF_CLASS:
            self._out.append(TAG_OF_CLASS[name])
            return
        if self._is_known_class(name):
            return
        if name.startswith("["):
            self._out.append(ARRAY_CLASS)
            inner = [part for item in items if isinstance(item, list) for part in item]
            self._class(name[1:].removeprefix("L").removesuffix(";"), inner)
            self._classes[name] = len(self._classes)
            return
        layout = self._layouts.get(name)
        for item in items:
            if isinstance(item, JavaEnum) and item.class_name == name:
                self._enum_class(name)
                return
            found = item.layout if isinstance(item, JavaObject) else None
            if isinstance(found, ClassLayout):
                layout = layout or next(
                    (level for level in found.chain() if level.class_name == name), None
                )
        if layout is None:
            raise EncodeError(f"no layout of {name} is known, the elements of an array")
        self._layout(layout, 0)


def _modified_utf8(text: str) -> bytes:
    return java_utf8(text).replace(b"\0", b"\xc0\x80")


def split_decimal(value: Decimal) -> tuple[int, int]:
    """Return unscaled value and scale of a BigDecimal.

    Raises:
        EncodeError: infinity, NaN, or a scale that 32 bits cannot hold.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -(2**31) < exponent < 2**31:
        raise EncodeError(f"{value!r:.80} is no number that a BigDecimal can hold")
    unscaled = int(Decimal((sign, digits, 0)))
    return unscaled, -exponent


def _capacity(size: int) -> int:
    """Return the buckets of a HashMap that grew to a size, at 16 first, three quarters full."""
    capacity = 16
    while size * 4 > capacity * 3:
        capacity *= 2
    return capacity


_UNMODIFIABLE_SETS = {
    f"{_COLLECTIONS}UnmodifiableSet": (
        UNMODIFIABLE_SET,
        LINKED_HASH_SET_LAYOUT.class_name,
    ),
    f"{_COLLECTIONS}UnmodifiableSortedSet": (
        UNMODIFIABLE_SORTED_SET,
        TREE_SET_LAYOUT.class_name,
    ),
}
_UNMODIFIABLE_MAPS = {
    f"{_COLLECTIONS}UnmodifiableMap": (UNMODIFIABLE_MAP, LINKED_HASH_MAP),
    f"{_COLLECTIONS}UnmodifiableSortedMap": (
        UNMODIFIABLE_SORTED_MAP,
        TREE_MAP_LAYOUT.class_name,
    ),
}

_Write = Callable[[RiverWriter, Any, int], None]
_WRITERS: dict[type, _Write] = {
    str: RiverWriter._text,
    Char: lambda writer, value, depth: writer._boxed(CHARACTER, "char", value),
    int: RiverWriter._int,
    Integer: RiverWriter._int,
    Byte: lambda writer, value, depth: writer._boxed(BYTE, "byte", value),
    Short: lambda writer, value, depth: writer._boxed(SHORT, "short", value),
    Long: lambda writer, value, depth: writer._boxed(LONG, "long", value),
    BigInteger: RiverWriter._big_integer,
    float: lambda writer, value, depth: writer._boxed(DOUBLE, "double", value),
    Double: lambda writer, value, depth: writer._boxed(DOUBLE, "double", value),
    Float: lambda writer, value, depth: writer._boxed(FLOAT, "float", value),
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


def _writer_of(kind: type) -> _Write | None:
    return next((_WRITERS[base] for base in kind.__mro__ if base in _WRITERS), None)
