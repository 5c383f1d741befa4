"""The types that Java has and Python lacks, and the Python types that stand for all others.

A decoder returns plain Python where nothing is lost by that (``str``, ``int`` for Integer, ``float``
for Double, ``bool``, ``None``, ``bytes``, ``Decimal``, ``UUID``, ``list`` for ArrayList, ``dict``
for LinkedHashMap, ``set`` for HashSet, an aware ``datetime`` for Date). Where the Java type matters,
it returns one of the classes below, so that a decoded value is encoded as it came. Most of them are
subclasses, so ``Long(5) == 5`` and ``JavaMap({"a": 1}, "java.util.HashMap") == {"a": 1}``.
``to_plain`` turns all of them into plain Python, for JSON, pages and task arguments.

An encoder turns an ``int`` into the first of Integer, Long and BigInteger that holds it; wrap the
number to choose another.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Self

ARRAY_LIST = "java.util.ArrayList"
LINKED_HASH_MAP = "java.util.LinkedHashMap"
HASH_SET = "java.util.HashSet"
LINKED_HASH_SET = "java.util.LinkedHashSet"

#: The class name of a list or map that was written without one, as Jackson does for ``int[]``.
UNTYPED = ""

#: The most keys of a map, or elements of a set, that may share one hash: Python compares each with each.
MAX_OF_ONE_HASH = 100

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


class _JavaInt(int):
    """An integer of a certain width; ValueError if the number does not fit."""

    __slots__ = ()
    _bits: ClassVar[int]

    def __new__(cls, value: int = 0) -> Self:
        self = super().__new__(cls, value)
        if not -(1 << (cls._bits - 1)) <= self < 1 << (cls._bits - 1):
            raise ValueError(f"{int(self)} does not fit into a Java {cls.__name__}")
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__


class Byte(_JavaInt):
    """``java.lang.Byte``, 8 bits with a sign."""

    __slots__ = ()
    _bits = 8


class Short(_JavaInt):
    """``java.lang.Short``, 16 bits."""

    __slots__ = ()
    _bits = 16


class Integer(_JavaInt):
    """``java.lang.Integer``, 32 bits. Decoders return a plain ``int`` for it."""

    __slots__ = ()
    _bits = 32


class Long(_JavaInt):
    """``java.lang.Long``, 64 bits."""

    __slots__ = ()
    _bits = 64


class BigInteger(int):
    """``java.math.BigInteger``, even for a number that a Long could hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"BigInteger({int(self)})"

    __str__ = int.__repr__


class Double(float):
    """``java.lang.Double``. Decoders return a plain ``float`` for it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Double({float(self)})"

    __str__ = float.__repr__


class Float(float):
    """``java.lang.Float``, 32 bits.

    Holds the shortest decimal that names the 32-bit number, as Java prints it, so that
    ``Float(0.1) == 0.1``, though the double nearest to the float is 0.10000000149011612.
    From 2**24 on every float is a whole number, and is held exactly: ``Float(2**31) == 2**31``.
    """

    __slots__ = ()

    def __new__(cls, value: float = 0.0) -> Self:
        short = shortest(float(value))
        if abs(short) >= WHOLE_FROM:
            (short,) = struct.unpack("<f", struct.pack("<f", short))
        return super().__new__(cls, short)

    def __repr__(self) -> str:
        return f"Float({float(self)})"

    __str__ = float.__repr__


#: From here on a 32-bit number has no places behind the point, and may have more digits than name it.
WHOLE_FROM = 2.0**24


def shortest(value: float) -> float:
    """Return the number with the fewest digits that is the same as a 32-bit number."""
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        raise ValueError(f"{value!r} does not fit into a Java Float") from None
    (single,) = struct.unpack("<f", bits)
    for digits in range(1, 10):
        short = float(f"{single:.{digits}g}")
        try:
            if struct.pack("<f", short) == bits:
                return short
        except OverflowError:  # rounded up past the greatest float
            continue
    return float(single)


class Char(str):
    """``java.lang.Character``: one UTF-16 unit, so no emoji."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if len(value) != 1 or value > "\uffff":
            raise ValueError(
                f"{value!r} is not one UTF-16 unit, as a Java Character is"
            )
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """``java.time.Instant``: seconds since 1970 and nanoseconds, 0 … 999,999,999."""

    seconds: int
    nano: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nano < 10**9:
            raise ValueError(f"nano must be 0 … 999999999, got {self.nano!r}")

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """Convert an aware datetime."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone")
        since = moment - EPOCH
        return cls(since.days * 86400 + since.seconds, since.microseconds * 1000)

    def to_datetime(self) -> datetime:
        """Return a datetime in UTC, rounded down to microseconds; OverflowError outside the years 1 … 9999."""
        return EPOCH + timedelta(seconds=self.seconds, microseconds=self.nano // 1000)


class JavaList(list[object]):
    """A List or an array whose class is not ArrayList; ``"[I"`` is ``int[]``."""

    __slots__ = ("class_name",)

    def __init__(
        self, items: Iterable[object] = (), class_name: str = ARRAY_LIST
    ) -> None:
        super().__init__(items)
        self.class_name = class_name

    def __repr__(self) -> str:
        return f"JavaList({super().__repr__()}, {self.class_name!r})"


class JavaMap(dict[object, object]):
    """A Map whose class is not LinkedHashMap."""

    __slots__ = ("class_name",)

    def __init__(
        self,
        items: Mapping[object, object] | Iterable[tuple[object, object]] = (),
        class_name: str = LINKED_HASH_MAP,
    ) -> None:
        super().__init__(items)
        self.class_name = class_name

    def __repr__(self) -> str:
        return f"JavaMap({super().__repr__()}, {self.class_name!r})"


class JavaSet(Set[object]):
    """A Set that keeps its order and its class, and may hold what Python cannot hash."""

    __slots__ = ("_items", "class_name")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, items: Iterable[object] = (), class_name: str = LINKED_HASH_SET
    ) -> None:
        self._items = tuple(items)
        self.class_name = class_name

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[object]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Set):
            return NotImplemented
        return len(self) == len(other) and all(item in self._items for item in other)

    def __repr__(self) -> str:
        return f"JavaSet({list(self._items)!r}, {self.class_name!r})"


@dataclass(frozen=True, slots=True)
class JavaEnum:
    """A constant of an enum."""

    class_name: str
    name: str


@dataclass(frozen=True, slots=True)
class JavaValue:
    """A value of a class that Python has no type for, in the form that the payload has.

    ``value`` is text where Java writes the class as text (``java.util.Locale``: ``"zh_CN"``,
    ``java.time.ZonedDateTime``: what ``toString`` says).
    """

    class_name: str
    value: object


@dataclass(frozen=True, slots=True)
class JavaObject:
    """An object of a Java class, by the names of its fields.

    ``layout`` is what else a codec has to know to write the object back (the field types and serial
    numbers of its classes); comparisons ignore it.
    """

    class_name: str
    fields: Mapping[str, object]
    layout: object = field(default=None, compare=False, repr=False)

    def __getitem__(self, name: str) -> object:
        return self.fields[name]

    def __hash__(self) -> int:
        return hash((self.class_name, frozenset(self.fields)))


def to_plain(value: object) -> object:
    """Return a copy in plain Python types only, without the Java types.

    Objects become dicts of their fields, enums their names, an Instant a datetime. Sets become
    lists, in their order.

    Example::

        to_plain(get_codec("Kryo5Codec").decode(payload))
    """
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case list() | tuple() | Set():
            return [to_plain(item) for item in value]
        case dict():
            return {to_plain(key): to_plain(item) for key, item in value.items()}
        case JavaObject():
            return {name: to_plain(item) for name, item in value.fields.items()}
        case JavaEnum():
            return value.name
        case JavaValue():
            return to_plain(value.value)
        case Instant():
            return value.to_datetime()
        case _:
            return value


def java_date(millis: int) -> object:
    """Return the aware datetime of a ``java.util.Date`` in epoch ms, or a JavaValue outside its range."""
    try:
        return EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return JavaValue("java.util.Date", millis)


def java_map(
    pairs: Sequence[tuple[object, object]], class_name: str
) -> dict[object, object]:
    """Return a ``dict`` for a LinkedHashMap, a JavaMap for any other.

    Raises:
        ValueError: Python cannot hash a key, or finds two keys equal, or too many keys share a hash.
    """
    try:
        if _is_crowded([key for key, _ in pairs]):
            raise ValueError("a map whose keys are made to collide")
        found = dict(pairs)
    except TypeError as error:
        raise ValueError(f"a map with a key that Python cannot hash: {error}") from None
    if len(found) != len(pairs):
        raise ValueError("a map with two keys that are the same in Python")
    return found if class_name == LINKED_HASH_MAP else JavaMap(found, class_name)


def _is_crowded(keys: Sequence[object]) -> bool:
    # A payload may choose UUIDs or BigIntegers that share a hash. Python would compare each with
    # each, which takes minutes for ten thousand.
    return (
        len(keys) > MAX_OF_ONE_HASH
        and max(Counter(map(hash, keys)).values()) > MAX_OF_ONE_HASH
    )


def java_set(items: Sequence[object], class_name: str) -> object:
    """Return a ``set`` for a HashSet that Python can hold without loss, else a JavaSet.

    ``1``, ``1.0``, ``true`` and ``1L`` are four elements in Java and one in Python.
    """
    if class_name == HASH_SET:
        try:
            if not _is_crowded(items) and len(plain := set(items)) == len(items):
                return plain
        except TypeError:  # an element that Python cannot hash
            pass
    return JavaSet(items, class_name)


def in_order(items: Set[object]) -> list[object]:
    """Return the elements of a set in the same order each time, whatever the hash seed."""
    if isinstance(items, JavaSet):
        return list(items)
    return sorted(items, key=lambda item: (type(item).__name__, _text_of(item)))


def _text_of(item: object) -> str:
    try:
        return repr(item)
    except ValueError:  # an int of more digits than Python prints
        return hex(item) if isinstance(item, int) else ""
