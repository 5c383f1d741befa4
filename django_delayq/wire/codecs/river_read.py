"""JBoss Marshalling's River protocol, read: one object with everything in it.

Payloads say which class an object is of and what its fields are called, so any object can be read
without its class. Nothing is looked up or called by name; the JDK's own classes are recognised by
``river_resolve``. Cycles are refused: what Python makes of a payload is a tree.
"""

from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from django_delayq.wire.codecs import java_time_ser
from django_delayq.wire.codecs.binary import BE_DOUBLE, BE_FLOAT, ByteReader
from django_delayq.wire.codecs.codec import MAX_DEPTH
from django_delayq.wire.codecs.river_classes import (
    ARRAY_CLASS,
    ARRAY_EMPTY,
    ARRAY_LIST,
    BLOCK_LARGE,
    BLOCK_SMALL,
    BYTE,
    CHARACTER,
    CLASS_CLASS,
    CLASS_REPEAT_FAR,
    CLASS_REPEAT_NEAR,
    CLASS_REPEAT_NEARISH,
    CLASS_TAGS,
    COLLECTION_EMPTY,
    DOUBLE,
    EMPTY_LIST,
    EMPTY_MAP,
    EMPTY_SET,
    END_BLOCK,
    ENUM_CLASS,
    ENUM_MAP,
    ENUM_SET_PROXY,
    EXTERNALIZABLE,
    FALSE,
    FLOAT,
    INTEGER,
    KINDS,
    LIST_TAGS,
    LONG,
    MAP_TAGS,
    N_COPIES,
    NEW_OBJECT,
    NULL,
    OBJECT_CLASS,
    PAIR,
    PLAIN_CLASS,
    PRIMITIVES,
    REPEAT_FAR,
    REPEAT_NEAR,
    REPEAT_NEARISH,
    SERIALIZABLE,
    SET_TAGS,
    SHORT,
    SINGLETON_LIST,
    SINGLETON_MAP,
    SINGLETON_SET,
    STRING_EMPTY,
    STRING_LARGE,
    STRING_MEDIUM,
    STRING_SMALL,
    TREE_MAP,
    TREE_SET,
    TRUE,
    UNMODIFIABLE_COLLECTION,
    UNMODIFIABLE_LIST,
    UNMODIFIABLE_MAP,
    UNMODIFIABLE_SET,
    UNMODIFIABLE_SORTED_MAP,
    UNMODIFIABLE_SORTED_SET,
    VERSION,
    WRITE_OBJECT,
    Block,
    ClassLayout,
)
from django_delayq.wire.codecs.river_resolve import (
    WRITTEN,
    Parts,
    field_names,
    resolve_object,
)
from django_delayq.wire.codecs.values import (
    Byte,
    Char,
    Float,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
    java_map,
    java_set,
)

#: Superclasses of a class; Java's own go to six or seven.
MAX_SUPERCLASSES = 32
#: What a payload of a few bytes may stand for by naming the same objects again and again.
MAX_REPEATED = 1_000_000

_T = TypeVar("_T")
_UNRESOLVED: Final = object()
_KIND_OF_TAG = {tag: kind for kind, tag in KINDS.items()}
_UNMODIFIABLE = {
    UNMODIFIABLE_COLLECTION: "java.util.Collections$UnmodifiableCollection",
    UNMODIFIABLE_SET: "java.util.Collections$UnmodifiableSet",
    UNMODIFIABLE_MAP: "java.util.Collections$UnmodifiableMap",
    UNMODIFIABLE_SORTED_SET: "java.util.Collections$UnmodifiableSortedSet",
    UNMODIFIABLE_SORTED_MAP: "java.util.Collections$UnmodifiableSortedMap",
}


class Descriptor:
    """A class as the payload describes it."""

    __slots__ = ("kind", "layout", "name", "names")

    def __init__(self, kind: int, name: str, layout: ClassLayout | None = None) -> None:
        self.kind = kind
        self.name = name
        self.layout = layout
        self.names = field_names(layout) if layout else []


class RiverReader:
    """Reads one payload, once."""

    def __init__(self, data: bytes) -> None:
        self.source = ByteReader(data, "MarshallingCodec")
        self._objects: list[object] = []
        #: For each object the number of values in it, itself and repeated ones included.
        self._weights: list[int] = []
        self._classes: list[Descriptor | None] = []
        self._read = 0

    def read(self) -> object:
        """Return the value of the payload.

        Raises:
            DecodeError: it is none, or holds what Python cannot.
        """
        version = self.source.byte()
        if version == 0:
            self._fail(
                "leading zero bytes, as 3.12.5 writes after an object it refused"
            )
        if version != VERSION:
            self._fail(f"protocol version {version}, not {VERSION}")
        value = self.value(0)
        if self.source.left:
            self._fail(
                f"{self.source.left} bytes after the value", self.source.position
            )
        return value

    def value(self, depth: int) -> object:
        """Read one object with its tag."""
        if depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        self._read += 1
        tag = self.source.byte()
        read = _READERS.get(tag)
        if read is not None:
            return read(self, tag, depth)
        if tag in CLASS_TAGS:
            return JavaValue("java.lang.Class", CLASS_TAGS[tag])
        self._fail(f"unknown tag {tag:#04x}")

    def _fail(self, message: str, offset: int | None = None) -> NoReturn:
        self.source.fail(
            message, max(self.source.position - 1, 0) if offset is None else offset
        )

    # The table of objects.

    def _reserve(self) -> int:
        self._objects.append(_UNRESOLVED)
        self._weights.append(self._read)
        return len(self._objects) - 1

    def _resolved(self, slot: int, value: _T) -> _T:
        self._objects[slot] = value
        self._weights[slot] = self._read - self._weights[slot] + 1
        return value

    def _added(self, value: _T, weight: int = 1) -> _T:
        self._objects.append(value)
        self._weights.append(weight)
        return value

    def _repeat(self, tag: int, depth: int) -> object:
        start = self.source.position - 1
        if tag == REPEAT_FAR:
            index = self.source.integer(4)
        else:
            index = self._relative(len(self._objects), 1 if tag == REPEAT_NEAR else 2)
        if not 0 <= index < len(self._objects):
            self._fail(f"no object {index} to repeat, of {len(self._objects)}", start)
        if self._objects[index] is _UNRESOLVED:
            self._fail("an object inside of itself", start)
        self._read += self._weights[index]
        if self._read > len(self.source.data) + MAX_REPEATED:
            self._fail(f"more than {MAX_REPEATED} repeated values", start)
        return self._objects[index]

    def _relative(self, size: int, width: int) -> int:
        return size - (1 << 8 * width) + self.source.integer(width)

    # Strings and numbers.

    def _string(self, tag: int, depth: int) -> str:
        if tag == STRING_EMPTY:
            return ""
        width = (1, 2, 4)[tag - STRING_SMALL]
        units = self.source.integer(width) or 1 << 8 * width
        text = self.source.java_text(units)
        self._read += units // 64
        return self._added(text, 1 + units // 64)

    def _number(self, tag: int, depth: int) -> object:
        source = self.source
        if tag == INTEGER:
            return source.integer(4, signed=True)
        if tag == LONG:
            return Long(source.integer(8, signed=True))
        if tag == BYTE:
            return Byte(source.integer(1, signed=True))
        if tag == SHORT:
            return Short(source.integer(2, signed=True))
        return self.primitive(
            {CHARACTER: "char", FLOAT: "float", DOUBLE: "double"}[tag]
        )

    def primitive(self, kind: str) -> object:
        """Read the bare value of a field or array element."""
        return _PRIMITIVE_READERS[kind](self.source)

    # Arrays and collections.

    def _size(self, tag: int, empty: int) -> int:
        width = (0, 1, 2, 4)[tag - empty]
        return (self.source.integer(width) or 1 << 8 * width) if width else 0

    def _array(self, tag: int, depth: int) -> object:
        size = self._size(tag, ARRAY_EMPTY)
        element = self.source.byte()
        if element in PRIMITIVES:
            return self._added(self._primitive_array(size, element))
        component = self._descriptor(element, depth).name
        return self._object_array(size, component, depth)

    def _object_array(self, size: int, component: str, depth: int) -> JavaList:
        slot = self._reserve()
        items = self._values(size, depth)
        name = f"[{component}" if component.startswith("[") else f"[L{component};"
        return self._resolved(slot, JavaList(items, name))

    def _primitive_array(self, size: int, element: int) -> object:
        kind, source = _KIND_OF_TAG[element], self.source
        if kind == "byte":
            return source.take(size)
        if kind == "boolean":
            packed = source.take((size + 7) // 8)
            return JavaList(
                [bool(packed[i >> 3] >> (i & 7) & 1) for i in range(size)], "[Z"
            )
        source.count(size, {"short": 2, "char": 2, "int": 4, "float": 4}.get(kind, 8))
        read = _PRIMITIVE_READERS[kind]
        return JavaList([read(source) for _ in range(size)], f"[{PRIMITIVES[element]}")

    def _values(self, size: int, depth: int) -> list[object]:
        self.source.count(size)
        items = []
        for _ in range(
            size
        ):  # no comprehension: in 3.11 each one is a frame more a level
            items.append(self.value(depth + 1))
        return items

    def _collection(self, tag: int, depth: int) -> object:
        size = self._size(tag, COLLECTION_EMPTY)
        kind = self.source.byte()
        if kind == ENUM_SET_PROXY:
            self._descriptor(self.source.byte(), depth)
        slot = self._reserve()
        if kind == ARRAY_LIST:
            return self._resolved(slot, self._values(size, depth))
        if kind in LIST_TAGS:
            return self._resolved(
                slot, JavaList(self._values(size, depth), LIST_TAGS[kind])
            )
        if kind in SET_TAGS:
            return self._resolved(
                slot, java_set(self._values(size, depth), SET_TAGS[kind])
            )
        if kind in MAP_TAGS:
            return self._resolved(
                slot, self._map(self._values(2 * size, depth), MAP_TAGS[kind])
            )
        if kind == ENUM_SET_PROXY:
            return self._resolved(
                slot, JavaSet(self._values(size, depth), "java.util.EnumSet")
            )
        if kind == ENUM_MAP:
            self._descriptor(self.source.byte(), depth)
            found = self._map(self._values(2 * size, depth), "java.util.EnumMap")
            return self._resolved(slot, found)
        if kind in (TREE_SET, TREE_MAP):
            self._no_comparator(depth)
            if kind == TREE_SET:
                return self._resolved(
                    slot, JavaSet(self._values(size, depth), CLASS_TAGS[kind])
                )
            found = self._map(self._values(2 * size, depth), CLASS_TAGS[kind])
            return self._resolved(slot, found)
        if kind == N_COPIES:
            return self._resolved(slot, self._copies(size, depth))
        self._fail(f"unknown kind of collection {kind:#04x}")

    def _no_comparator(self, depth: int) -> None:
        start = self.source.position
        if self.value(depth + 1) is not None:
            self._fail("a sorted collection with an order of its own", start)

    def _copies(self, size: int, depth: int) -> JavaList:
        before = self._read
        item = self.value(depth + 1)
        self._read += (self._read - before) * (size - 1)
        if self._read > len(self.source.data) + MAX_REPEATED:
            self._fail(f"more than {MAX_REPEATED} repeated values")
        return JavaList([item] * size, "java.util.Collections$CopiesList")

    def _map(self, flat: list[object], class_name: str) -> dict[object, object]:
        try:
            return java_map(list(zip(flat[::2], flat[1::2], strict=True)), class_name)
        except ValueError as error:
            self._fail(str(error), self.source.position)

    def _special(self, tag: int, depth: int) -> object:
        if tag == EMPTY_LIST:
            return JavaList([], "java.util.Collections$EmptyList")
        if tag == EMPTY_SET:
            return JavaSet([], "java.util.Collections$EmptySet")
        if tag == EMPTY_MAP:
            return JavaMap({}, "java.util.Collections$EmptyMap")
        slot = self._reserve()
        items = self._values(2 if tag in (SINGLETON_MAP, PAIR) else 1, depth)
        if tag == SINGLETON_LIST:
            found: object = JavaList(items, "java.util.Collections$SingletonList")
        elif tag == SINGLETON_SET:
            found = JavaSet(items, "java.util.Collections$SingletonSet")
        elif tag == SINGLETON_MAP:
            found = self._map(items, "java.util.Collections$SingletonMap")
        else:
            found = JavaValue("org.jboss.marshalling.Pair", items)
        return self._resolved(slot, found)

    def _unmodifiable(self, tag: int, depth: int) -> object:
        start = self.source.position
        slot = self._reserve()
        inner = self.value(depth + 1)
        if tag == UNMODIFIABLE_LIST and isinstance(inner, list):
            plain = "java.util.Collections$UnmodifiableList"
            random = "java.util.Collections$UnmodifiableRandomAccessList"
            name = (
                plain
                if getattr(inner, "class_name", "").endswith("LinkedList")
                else random
            )
            return self._resolved(slot, JavaList(inner, name))
        if tag in (UNMODIFIABLE_MAP, UNMODIFIABLE_SORTED_MAP) and isinstance(
            inner, dict
        ):
            return self._resolved(slot, JavaMap(inner, _UNMODIFIABLE[tag]))
        if tag in (UNMODIFIABLE_SET, UNMODIFIABLE_SORTED_SET) and isinstance(
            inner, set | JavaSet
        ):
            return self._resolved(slot, JavaSet(inner, _UNMODIFIABLE[tag]))
        if tag == UNMODIFIABLE_COLLECTION and isinstance(inner, list | set | JavaSet):
            return self._resolved(slot, JavaList(inner, _UNMODIFIABLE[tag]))
        self._fail("an unmodifiable view of something else", start)

    # Objects of classes that the payload describes.

    def _new_object(self, tag: int, depth: int) -> object:
        start = self.source.position
        descriptor = self._descriptor(self.source.byte(), depth)
        kind = descriptor.kind
        if kind in (SERIALIZABLE, WRITE_OBJECT):
            return self._serializable(descriptor, depth)
        if kind == ENUM_CLASS:
            return self._added(JavaEnum(descriptor.name, self._long_string()))
        if kind == EXTERNALIZABLE:
            return self._external(descriptor, depth)
        if kind == CLASS_CLASS:
            name = self._descriptor(self.source.byte(), depth).name
            return JavaValue("java.lang.Class", name)
        if kind == ARRAY_CLASS:
            component = descriptor.name[1:].removeprefix("L").removesuffix(";")
            return self._object_array(self.source.integer(4), component, depth)
        self._fail(f"no objects are made of {descriptor.name}", start)

    def _external(self, descriptor: Descriptor, depth: int) -> object:
        start, slot = self.source.position, self._reserve()
        written = self._annotation(depth)
        if descriptor.name == java_time_ser.CLASS_NAME:
            try:
                return self._resolved(slot, java_time_ser.read(written))
            except ValueError as error:
                self._fail(f"no java.time: {error}", start)
        fields = {WRITTEN: written}
        return self._resolved(
            slot, JavaObject(descriptor.name, fields, descriptor.layout)
        )

    def _serializable(self, descriptor: Descriptor, depth: int) -> object:
        start, slot = self.source.position, self._reserve()
        layout = descriptor.layout
        if layout is None:
            self._fail(f"{descriptor.name} is described inside of itself", start)
        parts: Parts = []
        for level in layout.chain():
            fields: dict[str, object] = {}
            for name, kind in level.fields:
                if kind == "object":
                    fields[name] = self.value(depth + 1)
                else:
                    fields[name] = self.primitive(kind)
            parts.append(
                (level, fields, self._annotation(depth) if level.writes_object else ())
            )
        try:
            return self._resolved(slot, resolve_object(layout, descriptor.names, parts))
        except ValueError as error:
            self._fail(f"no {descriptor.name}: {error}", start)

    def _annotation(self, depth: int) -> tuple[object, ...]:
        """Read what a writeObject or writeExternal wrote: blocks of bytes, and objects."""
        found: list[object] = []
        source = self.source
        while (tag := source.byte()) != END_BLOCK:
            if BLOCK_SMALL <= tag <= BLOCK_LARGE:
                found.append(
                    Block(source.take(source.integer((1, 2, 4)[tag - BLOCK_SMALL])))
                )
            else:
                source.position -= 1
                found.append(self.value(depth + 1))
        return tuple(found)

    # Classes.

    def _descriptor(self, tag: int, depth: int, above: int = 0) -> Descriptor:
        if tag in CLASS_TAGS:
            kind = CLASS_CLASS if tag == CLASS_CLASS else OBJECT_CLASS
            return Descriptor(kind, CLASS_TAGS[tag])
        if tag in (CLASS_REPEAT_NEAR, CLASS_REPEAT_NEARISH, CLASS_REPEAT_FAR):
            return self._known_class(tag)
        if tag in (SERIALIZABLE, WRITE_OBJECT):
            return self._serializable_class(tag, depth, above)
        if tag in (EXTERNALIZABLE, ENUM_CLASS, PLAIN_CLASS):
            descriptor = Descriptor(tag, self._long_string())
            if tag == EXTERNALIZABLE:
                uid = self.source.integer(8, signed=True)
                descriptor.layout = ClassLayout(descriptor.name, uid, is_external=True)
        elif tag == ARRAY_CLASS:
            if above > MAX_SUPERCLASSES:
                self._fail(f"an array of more than {MAX_SUPERCLASSES} dimensions")
            component = self._descriptor(self.source.byte(), depth, above + 1).name
            name = f"[{component}" if component.startswith("[") else f"[L{component};"
            descriptor = Descriptor(tag, name)
        else:
            self._fail(f"unknown class tag {tag:#04x}")
        self._classes.append(descriptor)
        return descriptor

    def _known_class(self, tag: int) -> Descriptor:
        start = self.source.position - 1
        if tag == CLASS_REPEAT_FAR:
            index = self.source.integer(4)
        else:
            index = self._relative(
                len(self._classes), 1 if tag == CLASS_REPEAT_NEAR else 2
            )
        if not 0 <= index < len(self._classes):
            self._fail(f"no class {index} to repeat, of {len(self._classes)}", start)
        descriptor = self._classes[index]
        if descriptor is None:
            self._fail("a class described inside of itself", start)
        return descriptor

    def _serializable_class(self, tag: int, depth: int, above: int) -> Descriptor:
        slot = len(self._classes)
        self._classes.append(None)
        name = self._class_text(depth)
        uid = self.source.integer(8, signed=True)
        count = self.source.count(self.source.integer(4), 3)
        if above > MAX_SUPERCLASSES:
            self._fail(f"a class with more than {MAX_SUPERCLASSES} superclasses")
        fields: list[tuple[str, str]] = []
        for _ in range(count):
            field = self._class_text(depth)
            if "#" in field or field in dict(fields):
                self._fail(f"a second field {field!r:.80}, or none of Java's")
            kind = self.source.byte()
            if kind in PRIMITIVES:
                fields.append((field, _KIND_OF_TAG[kind]))
            else:
                self._descriptor(kind, depth, above + 1)
                fields.append((field, "object"))
            if self.source.byte():
                self._fail("an unshared field")
        parent = self._descriptor(self.source.byte(), depth, above + 1)
        layout = ClassLayout(
            name, uid, tuple(fields), parent.layout, tag == WRITE_OBJECT
        )
        descriptor = Descriptor(tag, name, layout)
        self._classes[slot] = descriptor
        return descriptor

    def _class_text(self, depth: int) -> str:
        start = self.source.position
        text = self.value(depth + 1)
        if not isinstance(text, str) or not text:
            self._fail(f"no name: {text!r:.80}", start)
        return text

    def _long_string(self) -> str:
        return self.source.java_text(self.source.integer(4))


def _bool(source: ByteReader) -> bool:
    return source.byte() != 0


def _char(source: ByteReader) -> Char:
    return Char(chr(source.integer(2)))


_PRIMITIVE_READERS: dict[str, Callable[[ByteReader], object]] = {
    "boolean": _bool,
    "byte": lambda source: source.integer(1, signed=True),
    "short": lambda source: source.integer(2, signed=True),
    "int": lambda source: source.integer(4, signed=True),
    "long": lambda source: source.integer(8, signed=True),
    "char": _char,
    "float": lambda source: Float(source.floating(BE_FLOAT)),
    "double": lambda source: source.floating(BE_DOUBLE),
}

_Read = Callable[[RiverReader, int, int], object]
_READERS: dict[int, _Read] = {
    NULL: lambda reader, tag, depth: None,
    TRUE: lambda reader, tag, depth: True,
    FALSE: lambda reader, tag, depth: False,
    NEW_OBJECT: RiverReader._new_object,
}
for _read, _tags in (
    (RiverReader._repeat, (REPEAT_FAR, REPEAT_NEAR, REPEAT_NEARISH)),
    (RiverReader._string, (STRING_EMPTY, STRING_SMALL, STRING_MEDIUM, STRING_LARGE)),
    (RiverReader._number, (BYTE, SHORT, INTEGER, LONG, CHARACTER, FLOAT, DOUBLE)),
    (RiverReader._array, range(ARRAY_EMPTY, ARRAY_EMPTY + 4)),
    (RiverReader._collection, range(COLLECTION_EMPTY, COLLECTION_EMPTY + 4)),
    (RiverReader._special, (EMPTY_LIST, EMPTY_SET, EMPTY_MAP, PAIR)),
    (RiverReader._special, (SINGLETON_LIST, SINGLETON_SET, SINGLETON_MAP)),
    (RiverReader._unmodifiable, (*_UNMODIFIABLE, UNMODIFIABLE_LIST)),
):
    _READERS.update(dict.fromkeys(_tags, _read))
