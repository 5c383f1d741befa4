"""Classes as River describes them: the JDK's own, and how to describe yours.

serialVersionUIDs and fields are those of JDK 17, as the golden payloads show them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassLayout:
    """Layout of a Serializable class, which River writes before its first object.

    ``fields`` are pairs of a name and a kind: ``boolean``, ``byte``, ``short``, ``int``,
    ``long``, ``char``, ``float``, ``double``, or ``object`` for everything else. ``parent`` is the
    nearest superclass, if that is Serializable. ``writes_object``: the class has a method
    ``writeObject`` of its own. ``is_external``: the class is Externalizable; its layout has no fields.
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
    """Raw bytes that a ``writeObject`` or ``writeExternal`` wrote, as distinct from a ``byte[]``."""

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
