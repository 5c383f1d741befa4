"""How Kryo writes Java's classes, its dialects, and the declared types of fields.

Source: Kryo 5's DefaultSerializers, CollectionSerializer, MapSerializer, ReflectField; Redisson's
Kryo5Codec. Boundaries of the dialects: Redisson's changelog and the Kryo it depended on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from django_delayq.exceptions import EncodeError
from django_delayq.wire.frame import redisson_version

NULL, BY_NAME = 0, 1
#: Class ids that need no name. Integer and int share one.
REGISTERED = {
    2: "java.lang.Integer",
    3: "java.lang.String",
    4: "java.lang.Float",
    5: "java.lang.Boolean",
    6: "java.lang.Byte",
    7: "java.lang.Character",
    8: "java.lang.Short",
    9: "java.lang.Long",
    10: "java.lang.Double",
}
ID_OF_CLASS = {name: number for number, name in REGISTERED.items()}
PRIMITIVE_OF_ID = dict(
    zip(
        range(2, 11),
        ("int", "", "float", "boolean", "byte", "char", "short", "long", "double"),
        strict=True,
    )
)
BOXED_OF_PRIMITIVE = {
    word: REGISTERED[number] for number, word in PRIMITIVE_OF_ID.items() if word
}
PRIMITIVE_OF_LETTER = {
    "Z": "boolean",
    "B": "byte",
    "S": "short",
    "I": "int",
    "J": "long",
    "C": "char",
    "F": "float",
    "D": "double",
}
_LETTER_OF_PRIMITIVE = {word: letter for letter, word in PRIMITIVE_OF_LETTER.items()}

#: Written by CollectionSerializer; those in SORTED have their comparator after the size.
LISTS = frozenset({
    "java.util.ArrayList", "java.util.LinkedList", "java.util.Vector", "java.util.Stack",
    "java.util.ArrayDeque", "java.util.PriorityQueue", "java.util.Arrays$ArrayList",
    "java.util.concurrent.CopyOnWriteArrayList", "java.util.concurrent.ConcurrentLinkedQueue",
    "java.util.concurrent.ConcurrentLinkedDeque", "java.util.concurrent.LinkedBlockingQueue",
    "java.util.concurrent.LinkedBlockingDeque",
})  # fmt: skip
SETS = frozenset({
    "java.util.HashSet", "java.util.LinkedHashSet", "java.util.TreeSet",
    "java.util.concurrent.CopyOnWriteArraySet", "java.util.concurrent.ConcurrentSkipListSet",
})  # fmt: skip
MAPS = frozenset({
    "java.util.HashMap", "java.util.LinkedHashMap", "java.util.TreeMap", "java.util.Hashtable",
    "java.util.IdentityHashMap", "java.util.WeakHashMap", "java.util.Properties",
    "java.util.concurrent.ConcurrentHashMap", "java.util.concurrent.ConcurrentSkipListMap",
})  # fmt: skip
SORTED = frozenset({
    "java.util.PriorityQueue", "java.util.TreeSet", "java.util.TreeMap",
    "java.util.concurrent.ConcurrentSkipListMap",
})  # fmt: skip
IMMUTABLE_LISTS = frozenset({
    f"java.util.ImmutableCollections${name}" for name in ("List12", "ListN", "SubList")
})  # fmt: skip
IMMUTABLE_SETS = frozenset(
    {f"java.util.ImmutableCollections${name}" for name in ("Set12", "SetN")}
)
IMMUTABLE_MAPS = frozenset(
    {f"java.util.ImmutableCollections${name}" for name in ("Map1", "MapN")}
)
VIEW = re.compile(r"java\.util\.Collections\$(?:Unmodifiable|Synchronized|Checked)\w+")
#: Classes whose values are one text.
TEXTS = frozenset({
    "java.lang.StringBuffer", "java.lang.StringBuilder", "java.net.URI", "java.net.URL",
    "java.nio.charset.Charset", "java.util.Currency", "java.util.TimeZone", "java.time.ZoneId",
})  # fmt: skip
JDK_ENUMS: dict[str, tuple[str, ...]] = {
    "java.time.DayOfWeek": (
        "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY",
    ),
    "java.time.Month": (
        "JANUARY", "FEBRUARY", "MARCH", "APRIL", "MAY", "JUNE", "JULY", "AUGUST", "SEPTEMBER",
        "OCTOBER", "NOVEMBER", "DECEMBER",
    ),
    "java.util.concurrent.TimeUnit": (
        "NANOSECONDS", "MICROSECONDS", "MILLISECONDS", "SECONDS", "MINUTES", "HOURS", "DAYS",
    ),
}  # fmt: skip

#: Classes whose own format can say null, so that no null mark comes before it.
_ACCEPT_NULL = frozenset({
    "java.lang.Class", "java.lang.String", "java.lang.StringBuffer", "java.lang.StringBuilder",
    "java.math.BigDecimal", "java.math.BigInteger", "java.util.Currency",
    *LISTS, *SETS, *MAPS, *IMMUTABLE_LISTS, *IMMUTABLE_SETS, *IMMUTABLE_MAPS,
})  # fmt: skip
_FINAL = frozenset({
    *REGISTERED.values(), "java.lang.Class", "java.lang.StringBuffer", "java.lang.StringBuilder",
    "java.net.URI", "java.net.URL", "java.time.Duration", "java.time.Instant",
    "java.time.LocalDate", "java.time.LocalDateTime", "java.time.LocalTime",
    "java.time.OffsetDateTime", "java.time.ZonedDateTime", "java.util.Currency",
    "java.util.Locale", "java.util.Optional", "java.util.UUID",
})  # fmt: skip
_SIMPLE_NAMES = {
    name.rpartition(".")[2]: name
    for name in (
        *_FINAL,
        "java.math.BigDecimal",
        "java.math.BigInteger",
        "java.util.Date",
    )
}
_KIND = re.compile(r"\s*(?P<final>final\s+)?(?P<name>[\w.$?]+)\s*")

#: Declared classes: an enum's constants in order, or an object's fields and their types.
Classes = Mapping[str, Sequence[str] | Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class KryoDialect:
    """How the versions differ."""

    #: A flag byte follows every Class object, not only one of a primitive or its box. Before 3.13.1
    #: (Kryo 5.0.0-RC4).
    class_has_flag: bool
    #: ``List.of`` and its like have the has-null byte of other collections. Before 3.14.0.
    immutable_has_null: bool
    #: A UUID is an object of two fields, which Redisson itself cannot read. Before 3.19.1.
    uuid_has_fields: bool
    #: ``Collections.unmodifiableList`` and its like are embedded Java serialization. Since 3.35.0.
    views_are_java: bool

    @classmethod
    def of(cls, version: str | None) -> "KryoDialect":
        """Return the dialect of a Redisson version; ``None`` is the newest."""
        if version is None:
            return cls(False, False, False, True)
        major, minor, patch = redisson_version(version)
        number = (major, minor, patch or 0)
        return cls(
            class_has_flag=number < (3, 13, 1),
            immutable_has_null=number < (3, 14, 0),
            uuid_has_fields=number < (3, 19, 1),
            views_are_java=number >= (3, 35, 0),
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """The declared type of a field or of a type argument."""

    name: str
    arguments: tuple["Kind", ...] = ()
    is_final: bool = False


class Declarations:
    """The classes that the user declares, beside those that we know."""

    def __init__(self, classes: Classes) -> None:
        self._enums = {**JDK_ENUMS}
        self._fields: dict[str, list[tuple[str, Kind]]] = {}
        objects: dict[str, Sequence[tuple[str, str]]] = {}
        for name, declared in classes.items():
            if declared and all(isinstance(part, str) for part in declared):
                self._enums[name] = tuple(cast("Sequence[str]", declared))
            else:
                objects[name] = cast("Sequence[tuple[str, str]]", declared)
        for name, fields in objects.items():
            kinds = [(field, self.kind(text)) for field, text in fields]
            self._fields[name] = sorted(kinds, key=lambda pair: pair[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self._fields)}, {sorted(self._enums)})"

    def constants(self, name: str) -> tuple[str, ...] | None:
        """Return the constants of an enum in their order, or None if it is not declared."""
        return self._enums.get(name)

    def fields(self, name: str) -> list[tuple[str, Kind]] | None:
        """Return the fields of a class in the order that Kryo writes, by name, or None if it is not declared."""
        return self._fields.get(name)

    def is_final(self, name: str) -> bool:
        """Say whether values declared as this class are written without their class."""
        if name.startswith("["):
            element = name.lstrip("[")
            return len(element) == 1 or self.is_final(element[1:-1])
        return name in _FINAL or name in self._enums

    def accepts_null(self, name: str) -> bool:
        """Say whether a class has its own way to write null."""
        return name.startswith("[") or name in _ACCEPT_NULL or name in self._enums

    def kind(self, text: str) -> Kind:
        """Read a declared type as it stands in Java: ``int``, ``String``, ``Map<String,Object>``.

        ``object`` is any type that is not final. A name without a package is one of ``java.lang``, or
        of a few other classes that everyone imports. An enum is final; for another final class that
        we don't know, write ``final demo.Item``.

        Raises:
            EncodeError: the text is not a type.
        """
        kind, rest = self._parse(text, text)
        if rest:
            raise EncodeError(f"{text!r} is not a declared type: {rest!r} is too much")
        return kind

    def _parse(self, text: str, whole: str) -> tuple[Kind, str]:
        found = _KIND.match(text) if isinstance(text, str) else None
        if found is None:
            raise EncodeError(
                f"{whole!r} is not a declared type, such as 'int' or 'List<String>'"
            )
        name, rest = found["name"], text[found.end() :]
        name = _SIMPLE_NAMES.get(name, name)
        arguments: list[Kind] = []
        if rest.startswith("<"):
            while not rest.startswith(">"):
                argument, rest = self._parse(rest[1:], whole)
                arguments.append(argument)
                if not rest.startswith((",", ">")):
                    raise EncodeError(
                        f"{whole!r} is not a declared type: a '>' is missing"
                    )
            rest = rest[1:].lstrip()
        while rest.startswith("[]"):
            if name in BOXED_OF_PRIMITIVE:
                name = f"[{_LETTER_OF_PRIMITIVE[name]}"
            else:
                name = f"[{name}" if name.startswith("[") else f"[L{name};"
            rest = rest[2:].lstrip()
        final = (
            bool(found["final"]) or name in BOXED_OF_PRIMITIVE or self.is_final(name)
        )
        return Kind(name, tuple(arguments), final), rest
