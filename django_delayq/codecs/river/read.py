"""Reads JBoss Marshalling's River protocol: one object with everything in it.

A payload names the class of an object and its fields, so any object can be read without its class.
Nothing is looked up or called by name; ``resolve`` recognises the JDK's own classes. Cycles are
refused, because a payload becomes a tree in Python.
"""

from collections.abc import Callable

from django_delayq.codecs.binary import BE_DOUBLE, BE_FLOAT, ByteReader
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.river import java_time as river_time
from django_delayq.codecs.river import tags
from django_delayq.codecs.river.classes import (
    Block,
)
from django_delayq.codecs.river.input import (
    KIND_OF_TAG,
    MAX_COPIES,
    MAX_REPEATED,
    Descriptor,
    RiverInput,
)
from django_delayq.codecs.river.resolve import (
    WRITTEN,
    Parts,
    resolve_object,
)
from django_delayq.codecs.values import (
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

_UNMODIFIABLE = {
    tags.UNMODIFIABLE_COLLECTION: "java.util.Collections$UnmodifiableCollection",
    tags.UNMODIFIABLE_SET: "java.util.Collections$UnmodifiableSet",
    tags.UNMODIFIABLE_MAP: "java.util.Collections$UnmodifiableMap",
    tags.UNMODIFIABLE_SORTED_SET: "java.util.Collections$UnmodifiableSortedSet",
    tags.UNMODIFIABLE_SORTED_MAP: "java.util.Collections$UnmodifiableSortedMap",
}


class RiverReader(RiverInput):
    """Reads one payload, once."""

    def read(self) -> object:
        """Return the value of the payload.

        Raises:
            DecodeError: the payload is not River's, or holds a value that Python cannot hold.
        """
        version = self.source.byte()
        if version == 0:
            self._fail(
                "leading zero bytes, as 3.12.5 writes after an object it refused"
            )
        if version != tags.VERSION:
            self._fail(f"protocol version {version}, not {tags.VERSION}")
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
        if tag in tags.CLASS_TAGS:
            return JavaValue("java.lang.Class", tags.CLASS_TAGS[tag])
        self._fail(f"unknown tag {tag:#04x}")

    def _string(self, tag: int, depth: int) -> str:
        if tag == tags.STRING_EMPTY:
            return ""
        width = (1, 2, 4)[tag - tags.STRING_SMALL]
        units = self.source.integer(width) or 1 << 8 * width
        text = self.source.java_text(units)
        self._read += units // 64
        return self._added(text, 1 + units // 64)

    def _number(self, tag: int, depth: int) -> object:
        source = self.source
        if tag == tags.INTEGER:
            return source.integer(4, signed=True)
        if tag == tags.LONG:
            return Long(source.integer(8, signed=True))
        if tag == tags.BYTE:
            return Byte(source.integer(1, signed=True))
        if tag == tags.SHORT:
            return Short(source.integer(2, signed=True))
        return self.primitive(
            {tags.CHARACTER: "char", tags.FLOAT: "float", tags.DOUBLE: "double"}[tag]
        )

    def primitive(self, kind: str) -> object:
        """Read the bare value of a field or array element."""
        return _PRIMITIVE_READERS[kind](self.source)

    def _size(self, tag: int, empty: int) -> int:
        width = (0, 1, 2, 4)[tag - empty]
        return (self.source.integer(width) or 1 << 8 * width) if width else 0

    def _array(self, tag: int, depth: int) -> object:
        size = self._size(tag, tags.ARRAY_EMPTY)
        element = self.source.byte()
        if element in tags.PRIMITIVES:
            self._read += size
            return self._added(self._primitive_array(size, element), 1 + size)
        component = self._descriptor(element, depth).name
        return self._object_array(size, component, depth)

    def _object_array(self, size: int, component: str, depth: int) -> JavaList:
        slot = self._reserve()
        items = self._values(size, depth)
        return self._resolved(slot, JavaList(items, self._array_name(component)))

    def _primitive_array(self, size: int, element: int) -> object:
        kind, source = KIND_OF_TAG[element], self.source
        if kind == "byte":
            return source.take(size)
        if kind == "boolean":
            packed = source.take((size + 7) // 8)
            # A byte holds eight elements: a generator spares a second list of them all.
            return JavaList(
                (packed[i >> 3] >> (i & 7) & 1 == 1 for i in range(size)), "[Z"
            )
        source.count(size, {"short": 2, "char": 2, "int": 4, "float": 4}.get(kind, 8))
        read = _PRIMITIVE_READERS[kind]
        return JavaList(
            (read(source) for _ in range(size)), f"[{tags.PRIMITIVES[element]}"
        )

    def _values(self, size: int, depth: int) -> list[object]:
        self.source.count(size)
        items = []
        # Not a comprehension: in Python 3.11 each takes one more stack frame per level.
        for _ in range(size):
            items.append(self.value(depth + 1))
        return items

    def _collection(self, tag: int, depth: int) -> object:
        size = self._size(tag, tags.COLLECTION_EMPTY)
        kind = self.source.byte()
        if kind == tags.ENUM_SET_PROXY:
            self._descriptor(self.source.byte(), depth)
        slot = self._reserve()
        if kind == tags.ARRAY_LIST:
            return self._resolved(slot, self._values(size, depth))
        if kind in tags.LIST_TAGS:
            return self._resolved(
                slot, JavaList(self._values(size, depth), tags.LIST_TAGS[kind])
            )
        if kind in tags.SET_TAGS:
            return self._resolved(
                slot, java_set(self._values(size, depth), tags.SET_TAGS[kind])
            )
        if kind in tags.MAP_TAGS:
            return self._resolved(
                slot, self._map(self._values(2 * size, depth), tags.MAP_TAGS[kind])
            )
        if kind == tags.ENUM_SET_PROXY:
            return self._resolved(
                slot, JavaSet(self._values(size, depth), "java.util.EnumSet")
            )
        if kind == tags.ENUM_MAP:
            self._descriptor(self.source.byte(), depth)
            found = self._map(self._values(2 * size, depth), "java.util.EnumMap")
            return self._resolved(slot, found)
        if kind in (tags.TREE_SET, tags.TREE_MAP):
            self._no_comparator(depth)
            if kind == tags.TREE_SET:
                return self._resolved(
                    slot, JavaSet(self._values(size, depth), tags.CLASS_TAGS[kind])
                )
            found = self._map(self._values(2 * size, depth), tags.CLASS_TAGS[kind])
            return self._resolved(slot, found)
        if kind == tags.N_COPIES:
            return self._resolved(slot, self._copies(size, depth))
        self._fail(f"unknown kind of collection {kind:#04x}")

    def _no_comparator(self, depth: int) -> None:
        start = self.source.position
        if self.value(depth + 1) is not None:
            self._fail("a sorted collection with an order of its own", start)

    def _copies(self, size: int, depth: int) -> JavaList:
        start, before = self.source.position, self._read
        self._copied += size
        if self._copied > len(self.source.data) + MAX_COPIES:
            self._fail(f"more than {MAX_COPIES} copies of a value", start)
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
        if tag == tags.EMPTY_LIST:
            return JavaList([], "java.util.Collections$EmptyList")
        if tag == tags.EMPTY_SET:
            return JavaSet([], "java.util.Collections$EmptySet")
        if tag == tags.EMPTY_MAP:
            return JavaMap({}, "java.util.Collections$EmptyMap")
        slot = self._reserve()
        items = self._values(2 if tag in (tags.SINGLETON_MAP, tags.PAIR) else 1, depth)
        if tag == tags.SINGLETON_LIST:
            found: object = JavaList(items, "java.util.Collections$SingletonList")
        elif tag == tags.SINGLETON_SET:
            found = JavaSet(items, "java.util.Collections$SingletonSet")
        elif tag == tags.SINGLETON_MAP:
            found = self._map(items, "java.util.Collections$SingletonMap")
        else:
            found = JavaValue("org.jboss.marshalling.Pair", items)
        return self._resolved(slot, found)

    def _unmodifiable(self, tag: int, depth: int) -> object:
        start = self.source.position
        slot = self._reserve()
        inner = self.value(depth + 1)
        if tag == tags.UNMODIFIABLE_LIST and isinstance(inner, list):
            plain = "java.util.Collections$UnmodifiableList"
            random = "java.util.Collections$UnmodifiableRandomAccessList"
            name = (
                plain
                if getattr(inner, "class_name", "").endswith("LinkedList")
                else random
            )
            return self._resolved(slot, JavaList(inner, name))
        if tag in (tags.UNMODIFIABLE_MAP, tags.UNMODIFIABLE_SORTED_MAP) and isinstance(
            inner, dict
        ):
            return self._resolved(slot, JavaMap(inner, _UNMODIFIABLE[tag]))
        if tag in (tags.UNMODIFIABLE_SET, tags.UNMODIFIABLE_SORTED_SET) and isinstance(
            inner, set | JavaSet
        ):
            return self._resolved(slot, JavaSet(inner, _UNMODIFIABLE[tag]))
        if tag == tags.UNMODIFIABLE_COLLECTION and isinstance(
            inner, list | set | JavaSet
        ):
            return self._resolved(slot, JavaList(inner, _UNMODIFIABLE[tag]))
        self._fail("an unmodifiable view of something else", start)

    def _new_object(self, tag: int, depth: int) -> object:
        start = self.source.position
        descriptor = self._descriptor(self.source.byte(), depth)
        kind = descriptor.kind
        if kind in (tags.SERIALIZABLE, tags.WRITE_OBJECT):
            return self._serializable(descriptor, depth)
        if kind == tags.ENUM_CLASS:
            return self._added(JavaEnum(descriptor.name, self._long_string()))
        if kind == tags.EXTERNALIZABLE:
            return self._external(descriptor, depth)
        if kind == tags.CLASS_CLASS:
            name = self._descriptor(self.source.byte(), depth).name
            return JavaValue("java.lang.Class", name)
        if kind == tags.ARRAY_CLASS:
            component = descriptor.name[1:].removeprefix("L").removesuffix(";")
            return self._object_array(self.source.integer(4), component, depth)
        self._fail(f"no objects are made of {descriptor.name}", start)

    def _external(self, descriptor: Descriptor, depth: int) -> object:
        start, slot = self.source.position, self._reserve()
        written = self._annotation(depth)
        if descriptor.name == river_time.CLASS_NAME:
            try:
                return self._resolved(slot, river_time.read(written))
            except ValueError as error:
                self._fail(f"not a value of java.time: {error}", start)
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
            self._read += len(level.fields)
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
            self._fail(f"not a {descriptor.name}: {error}", start)

    def _annotation(self, depth: int) -> tuple[object, ...]:
        """Read what a writeObject or writeExternal wrote: blocks of bytes, and objects."""
        found: list[object] = []
        source = self.source
        while (tag := source.byte()) != tags.END_BLOCK:
            if tags.BLOCK_SMALL <= tag <= tags.BLOCK_LARGE:
                size = source.integer((1, 2, 4)[tag - tags.BLOCK_SMALL])
                self._read += size // 64
                found.append(Block(source.take(size)))
            else:
                source.position -= 1
                found.append(self.value(depth + 1))
        return tuple(found)


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
    tags.NULL: lambda reader, tag, depth: None,
    tags.TRUE: lambda reader, tag, depth: True,
    tags.FALSE: lambda reader, tag, depth: False,
    tags.NEW_OBJECT: RiverReader._new_object,
}
for _read, _tags in (
    (RiverReader._repeat, (tags.REPEAT_FAR, tags.REPEAT_NEAR, tags.REPEAT_NEARISH)),
    (
        RiverReader._string,
        (tags.STRING_EMPTY, tags.STRING_SMALL, tags.STRING_MEDIUM, tags.STRING_LARGE),
    ),
    (
        RiverReader._number,
        (
            tags.BYTE,
            tags.SHORT,
            tags.INTEGER,
            tags.LONG,
            tags.CHARACTER,
            tags.FLOAT,
            tags.DOUBLE,
        ),
    ),
    (RiverReader._array, range(tags.ARRAY_EMPTY, tags.ARRAY_EMPTY + 4)),
    (RiverReader._collection, range(tags.COLLECTION_EMPTY, tags.COLLECTION_EMPTY + 4)),
    (
        RiverReader._special,
        (tags.EMPTY_LIST, tags.EMPTY_SET, tags.EMPTY_MAP, tags.PAIR),
    ),
    (
        RiverReader._special,
        (tags.SINGLETON_LIST, tags.SINGLETON_SET, tags.SINGLETON_MAP),
    ),
    (RiverReader._unmodifiable, (*_UNMODIFIABLE, tags.UNMODIFIABLE_LIST)),
):
    _READERS.update(dict.fromkeys(_tags, _read))
