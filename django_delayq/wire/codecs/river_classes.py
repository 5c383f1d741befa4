"""Classes as JBoss Marshalling's River protocol describes them, and its tags.

Source: jboss-marshalling's Protocol.java; serialVersionUIDs and fields as the golden payloads
show them (JDK 17).
"""

from dataclasses import dataclass

VERSION = 4

NULL, REPEAT_FAR, NEW_OBJECT = 0x01, 0x02, 0x04
CLASS_REPEAT_FAR, PLAIN_CLASS, SERIALIZABLE, EXTERNALIZABLE, ENUM_CLASS, ARRAY_CLASS = (
    0x06, 0x07, 0x09, 0x0A, 0x0C, 0x0D,
)  # fmt: skip
STRING_CLASS, CLASS_CLASS, OBJECT_CLASS = 0x14, 0x15, 0x16
BLOCK_SMALL, BLOCK_MEDIUM, BLOCK_LARGE, END_BLOCK, WRITE_OBJECT = (
    0x32,
    0x33,
    0x34,
    0x35,
    0x38,
)
REPEAT_NEAR, REPEAT_NEARISH, CLASS_REPEAT_NEAR, CLASS_REPEAT_NEARISH = (
    0x39,
    0x3A,
    0x3B,
    0x3C,
)
STRING_EMPTY, STRING_SMALL, STRING_MEDIUM, STRING_LARGE = 0x3D, 0x3E, 0x3F, 0x40
ARRAY_EMPTY, COLLECTION_EMPTY = 0x41, 0x52
BYTE, SHORT, INTEGER, LONG, CHARACTER, FLOAT, DOUBLE, TRUE, FALSE = range(0x49, 0x52)
ARRAY_LIST, LINKED_LIST, SINGLETON_LIST, EMPTY_LIST = range(0x5A, 0x5E)
HASH_SET, LINKED_HASH_SET, TREE_SET, SINGLETON_SET, EMPTY_SET = range(0x5E, 0x63)
(
    IDENTITY_HASH_MAP, HASH_MAP, HASHTABLE, LINKED_HASH_MAP, TREE_MAP, SINGLETON_MAP, EMPTY_MAP,
) = range(0x63, 0x6A)  # fmt: skip
ENUM_SET_PROXY, ENUM_MAP, VECTOR, STACK, PAIR, ARRAY_DEQUE, N_COPIES = (
    0x6A, 0x6C, 0x75, 0x76, 0x77, 0x78, 0x7B,
)  # fmt: skip
UNMODIFIABLE_COLLECTION, UNMODIFIABLE_LIST, UNMODIFIABLE_MAP, UNMODIFIABLE_SET = range(
    0x7C, 0x80
)
UNMODIFIABLE_SORTED_SET, UNMODIFIABLE_SORTED_MAP = 0x80, 0x81

#: The types of fields and array elements that are no objects, by tag, in Java's letters.
PRIMITIVES = dict(zip(range(0x20, 0x28), "ZBSIJCFD", strict=True))
#: The same by the word for them.
KINDS = dict(
    zip(
        ("boolean", "byte", "short", "int", "long", "char", "float", "double"),
        range(0x20, 0x28),
        strict=True,
    )
)

#: Classes that are one tag wherever a class may stand.
CLASS_TAGS = {
    STRING_CLASS: "java.lang.String",
    CLASS_CLASS: "java.lang.Class",
    OBJECT_CLASS: "java.lang.Object",
    0x17: "java.lang.Enum",
    **{0x18 + i: f"[{letter}" for i, letter in enumerate("ZBSIJCFD")},
    **{0x20 + i: kind for i, kind in enumerate(KINDS)},
    0x28: "void",
    **{
        0x29 + i: f"java.lang.{name}"
        for i, name in enumerate(
            [
                "Boolean",
                "Byte",
                "Short",
                "Integer",
                "Long",
                "Character",
                "Float",
                "Double",
                "Void",
            ]
        )
    },
    ARRAY_LIST: "java.util.ArrayList",
    LINKED_LIST: "java.util.LinkedList",
    HASH_SET: "java.util.HashSet",
    LINKED_HASH_SET: "java.util.LinkedHashSet",
    TREE_SET: "java.util.TreeSet",
    IDENTITY_HASH_MAP: "java.util.IdentityHashMap",
    HASH_MAP: "java.util.HashMap",
    HASHTABLE: "java.util.Hashtable",
    LINKED_HASH_MAP: "java.util.LinkedHashMap",
    TREE_MAP: "java.util.TreeMap",
    0x6B: "java.util.EnumSet",
    ENUM_MAP: "java.util.EnumMap",
    0x6D: "java.util.AbstractCollection",
    0x6E: "java.util.AbstractSet",
    0x6F: "java.util.AbstractList",
    0x70: "java.util.AbstractQueue",
    0x71: "java.util.AbstractSequentialList",
    0x72: "java.util.concurrent.ConcurrentHashMap",
    0x73: "java.util.concurrent.CopyOnWriteArrayList",
    0x74: "java.util.concurrent.CopyOnWriteArraySet",
    VECTOR: "java.util.Vector",
    STACK: "java.util.Stack",
    ARRAY_DEQUE: "java.util.ArrayDeque",
}
TAG_OF_CLASS = {name: tag for tag, name in CLASS_TAGS.items()}

#: Collections that are a count, a tag and their elements.
LIST_TAGS = {
    ARRAY_LIST: "java.util.ArrayList",
    LINKED_LIST: "java.util.LinkedList",
    VECTOR: "java.util.Vector",
    STACK: "java.util.Stack",
    ARRAY_DEQUE: "java.util.ArrayDeque",
}
SET_TAGS = {HASH_SET: "java.util.HashSet", LINKED_HASH_SET: "java.util.LinkedHashSet"}
MAP_TAGS = {
    HASH_MAP: "java.util.HashMap",
    HASHTABLE: "java.util.Hashtable",
    IDENTITY_HASH_MAP: "java.util.IdentityHashMap",
    LINKED_HASH_MAP: "java.util.LinkedHashMap",
}


@dataclass(frozen=True, slots=True)
class ClassLayout:
    """What River writes of a Serializable class before its first object.

    ``fields`` are pairs of a name and a kind: ``boolean``, ``byte``, ``short``, ``int``,
    ``long``, ``char``, ``float``, ``double``, or ``object`` for everything else. ``parent`` is the
    nearest superclass, if that is Serializable. ``writes_object``: it has a method
    ``writeObject`` of its own. ``is_external``: it is Externalizable, and has no fields here.
    """

    class_name: str
    uid: int
    fields: tuple[tuple[str, str], ...] = ()
    parent: "ClassLayout | None" = None
    writes_object: bool = False
    is_external: bool = False

    def chain(self) -> list["ClassLayout"]:
        """Return the layouts from the topmost class down to this one."""
        found: list[ClassLayout] = []
        layout: ClassLayout | None = self
        while layout is not None:
            found.append(layout)
            layout = layout.parent
        return found[::-1]


class Block(bytes):
    """Raw bytes that a ``writeObject`` or ``writeExternal`` wrote, apart from a ``byte[]``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Block({bytes(self)!r})"


def _uid(hexadecimal: str) -> int:
    return int.from_bytes(bytes.fromhex(hexadecimal), "big", signed=True)


_NUMBER = ClassLayout("java.lang.Number", _uid("86ac951d0b94e08b"))
BIG_INTEGER_LAYOUT = ClassLayout(
    "java.math.BigInteger",
    _uid("8cfc9f1fa93bfb1d"),
    (
        ("bitCount", "int"), ("bitLength", "int"), ("firstNonzeroByteNum", "int"),
        ("lowestSetBit", "int"), ("magnitude", "object"), ("signum", "int"),
    ),
    _NUMBER,
    writes_object=True,
)  # fmt: skip
BIG_DECIMAL_LAYOUT = ClassLayout(
    "java.math.BigDecimal",
    _uid("54c71557f981284f"),
    (("intVal", "object"), ("scale", "int")),
    _NUMBER,
    writes_object=True,
)
DATE_LAYOUT = ClassLayout(
    "java.util.Date", _uid("686a81014b597419"), writes_object=True
)
UUID_LAYOUT = ClassLayout(
    "java.util.UUID",
    _uid("bc9903f7986d852f"),
    (("leastSigBits", "long"), ("mostSigBits", "long")),
)
LOCALE_LAYOUT = ClassLayout(
    "java.util.Locale",
    _uid("7ef811609c30f9ec"),
    (
        ("country", "object"), ("extensions", "object"), ("hashcode", "int"),
        ("language", "object"), ("script", "object"), ("variant", "object"),
    ),
    writes_object=True,
)  # fmt: skip
URL_LAYOUT = ClassLayout(
    "java.net.URL",
    _uid("962537361afce472"),
    (
        ("authority", "object"), ("file", "object"), ("hashCode", "int"), ("host", "object"),
        ("port", "int"), ("protocol", "object"), ("ref", "object"),
    ),
    writes_object=True,
)  # fmt: skip
AS_LIST_LAYOUT = ClassLayout(
    "java.util.Arrays$ArrayList", _uid("d9a43cbecd8806d2"), (("a", "object"),)
)
IMMUTABLE_LAYOUT = ClassLayout(
    "java.util.CollSer", _uid("578eabb63a1ba811"), (("tag", "int"),), writes_object=True
)
HASH_MAP_LAYOUT = ClassLayout(
    "java.util.HashMap",
    _uid("0507dac1c31660d1"),
    (("loadFactor", "float"), ("threshold", "int")),
    writes_object=True,
)
LINKED_HASH_MAP_LAYOUT = ClassLayout(
    "java.util.LinkedHashMap",
    _uid("34c04e5c106cc0fb"),
    (("accessOrder", "boolean"),),
    HASH_MAP_LAYOUT,
)
TREE_MAP_LAYOUT = ClassLayout(
    "java.util.TreeMap",
    _uid("0cc1f63e2d256ae6"),
    (("comparator", "object"),),
    writes_object=True,
)
HASH_SET_LAYOUT = ClassLayout(
    "java.util.HashSet", _uid("ba44859596b8b734"), writes_object=True
)
LINKED_HASH_SET_LAYOUT = ClassLayout(
    "java.util.LinkedHashSet", _uid("d86cd75a95dd2a1e"), parent=HASH_SET_LAYOUT
)
TREE_SET_LAYOUT = ClassLayout(
    "java.util.TreeSet", _uid("dd98509395ed875b"), writes_object=True
)

_OWNABLE = ClassLayout(
    "java.util.concurrent.locks.AbstractOwnableSynchronizer", _uid("33dfafb9ad6d6fa9")
)
_QUEUED = ClassLayout(
    "java.util.concurrent.locks.AbstractQueuedSynchronizer",
    _uid("6655a843753f52e3"),
    (("state", "int"),),
    _OWNABLE,
)
_SYNC = ClassLayout(
    "java.util.concurrent.locks.ReentrantLock$Sync",
    _uid("b81ea294aa445a7c"),
    parent=_QUEUED,
)
NONFAIR_SYNC_LAYOUT = ClassLayout(
    "java.util.concurrent.locks.ReentrantLock$NonfairSync",
    _uid("658832e7537bbf0b"),
    parent=_SYNC,
)
_REENTRANT_LOCK = ClassLayout(
    "java.util.concurrent.locks.ReentrantLock",
    _uid("6655a82c2cc86aeb"),
    (("sync", "object"),),
)
SEGMENT_LAYOUT = ClassLayout(
    "java.util.concurrent.ConcurrentHashMap$Segment",
    _uid("1f364c905893293d"),
    (("loadFactor", "float"),),
    _REENTRANT_LOCK,
)
CONCURRENT_HASH_MAP_LAYOUT = ClassLayout(
    "java.util.concurrent.ConcurrentHashMap",
    _uid("6499de129d87293d"),
    (("segmentMask", "int"), ("segmentShift", "int"), ("segments", "object")),
    writes_object=True,
)
