"""Reads Kryo 5 without references, as Redisson sets it up.

Kryo writes the class of an object and then its bare fields, in an order that only the class has.
Nothing shows where an object of an unknown class ends, so such a payload is refused unless the fields
of the class are declared.
"""

import re
from collections.abc import Callable
from uuid import UUID

from django_delayq.codecs import java_time
from django_delayq.codecs.binary import LE_DOUBLE, LE_FLOAT
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.compact_time import read_offset, read_time
from django_delayq.codecs.decimals import as_decimal, read_big_integer
from django_delayq.codecs.kryo.input import KryoInput
from django_delayq.codecs.kryo.kinds import (
    BOXED_OF_PRIMITIVE,
    IMMUTABLE_LISTS,
    IMMUTABLE_MAPS,
    IMMUTABLE_SETS,
    LISTS,
    MAPS,
    PRIMITIVE_OF_ID,
    PRIMITIVE_OF_LETTER,
    REGISTERED,
    SETS,
    SORTED,
    TEXTS,
    VIEW,
    Declarations,
    Kind,
    KryoDialect,
)
from django_delayq.codecs.values import (
    ARRAY_LIST,
    BigInteger,
    Byte,
    Char,
    Float,
    Instant,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
    java_date,
    java_map,
    java_set,
)
from django_delayq.exceptions import DecodeError

#: How many elements may have no byte of their own (nulls, Java's empty lists), beyond one for each byte
#: of the payload.
FREE_ELEMENTS = 1000

_ANY = Kind("object")
_ARRAY = re.compile(r"\[+(?:[ZBSIJCFD]|L[^;\[]+;)")
_COLLECTIONS = "java.util.Collections$"


class KryoReader(KryoInput):
    """Reads one payload, once."""

    def __init__(
        self, data: bytes, dialect: KryoDialect, declared: Declarations
    ) -> None:
        super().__init__(data)
        self._dialect = dialect
        self._declared = declared
        self._free = len(data) + FREE_ELEMENTS

    def read(self) -> object:
        """Return the value of the payload.

        Raises:
            DecodeError: the payload is not Kryo's, or holds an object of an unknown class or a value
                that Python cannot hold.
        """
        value = self.value(_ANY, 0)
        if self.source.left:
            self.source.fail(f"{self.source.left} bytes after the value")
        return value

    def value(self, kind: Kind, depth: int) -> object:
        """Read an object with its class; the type arguments of ``kind`` apply to it."""
        start = self.source.position
        name = self.class_name()
        return None if name is None else self.body(name, kind.arguments, depth, start)

    def body(
        self,
        name: str,
        arguments: tuple[Kind, ...],
        depth: int,
        start: int | None = None,
    ) -> object:
        """Read an object of a known class."""
        if depth > MAX_DEPTH:
            self.source.fail(f"nested deeper than {MAX_DEPTH} levels")
        read = _BODIES.get(name)
        start = self.source.position if start is None else start
        try:
            if read is not None:
                return read(self)
            if name.startswith("["):
                return self._array(name, depth)
            if (
                name in LISTS
                or name in SETS
                or name in IMMUTABLE_LISTS
                or name in IMMUTABLE_SETS
            ):
                return self._collection(name, arguments, depth)
            if name in MAPS or name in IMMUTABLE_MAPS:
                return self._map(name, arguments, depth)
            if constants := self._declared.constants(name):
                return self.enum(name, constants)
            if (fields := self._declared.fields(name)) is not None:
                return self._object(name, fields, depth)
            return self._special(name, arguments, depth, start)
        except DecodeError:
            raise
        except ValueError as error:
            self.source.fail(f"not a {name}: {error}", start)

    def nullable(self, kind: Kind, depth: int) -> object:
        """Read an object of a known class that may be null."""
        if not self._declared.accepts_null(kind.name):
            mark = self.source.byte()
            if mark == 0:
                return None
            if mark != 1:
                self._fail(f"{mark:#04x} where 0 says null and 1 begins a value")
        return self.body(kind.name, kind.arguments, depth)

    def class_object(self) -> object:
        """Read a ``java.lang.Class``."""
        found = self._class_id()
        primitive = PRIMITIVE_OF_ID.get(found, "") if isinstance(found, int) else ""
        if self._dialect.class_has_flag or primitive:
            is_primitive = self.flag()
            if is_primitive and primitive:
                return JavaValue("java.lang.Class", primitive)
        if found is None:
            return None
        return JavaValue(
            "java.lang.Class", REGISTERED[found] if isinstance(found, int) else found
        )

    def _counted(self, start: int) -> None:
        """Count an element that took no byte of the payload."""
        if self.source.position == start:
            self._free -= 1
            if self._free < 0:
                self.source.fail("more elements than a payload of this size may have")

    def _array(self, name: str, depth: int) -> object:
        source, component = self.source, name[1:]
        element = component if component.startswith("[") else component[1:-1]
        if not _ARRAY.fullmatch(name):
            source.fail(f"{name!r:.80} is not an array")
        size = self.size()
        if size is None:
            return None
        if component == "B":
            return source.take(size)
        source.count(size)
        if component in PRIMITIVE_OF_LETTER:
            read = _PRIMITIVES[PRIMITIVE_OF_LETTER[component]]
            return JavaList([read(self) for _ in range(size)], name)
        kind, items = Kind(element), []
        final = self._declared.is_final(element)
        for _ in range(
            size
        ):  # no comprehension: in 3.11 each one is a frame more a level
            if final:
                items.append(self.nullable(kind, depth + 1))
            else:
                items.append(self.value(_ANY, depth + 1))
        return JavaList(items, name)

    def _collection(self, name: str, arguments: tuple[Kind, ...], depth: int) -> object:
        immutable = name in IMMUTABLE_LISTS or name in IMMUTABLE_SETS
        keeps_null = not immutable or self._dialect.immutable_has_null
        kind = arguments[0] if arguments else _ANY
        flag, number = (
            (False, self.varint())
            if kind.is_final and not keeps_null
            else self.flagged()
        )
        if number == 0:
            return None
        size = number - 1
        if name in SORTED:
            self._natural_order()
        items: list[object] = []
        if size and kind.is_final:
            self._elements(items, size, kind if flag else None, kind, depth)
        elif size and flag:
            element = self.class_name()
            if element is None:
                self._free -= size
                if self._free < 0:
                    self.source.fail(
                        "more elements than a payload of this size may have"
                    )
                items = [None] * size
            else:
                found = Kind(element, kind.arguments)
                has_null = keeps_null and self.flag()
                self._elements(items, size, found if has_null else None, found, depth)
        elif size:
            for _ in range(size):
                start = self.source.position
                items.append(self.value(kind, depth + 1))
                self._counted(start)
        if name in SETS or name in IMMUTABLE_SETS:
            return java_set(items, name)
        return items if name == ARRAY_LIST else JavaList(items, name)

    def _elements(
        self,
        items: list[object],
        size: int,
        nullable: Kind | None,
        kind: Kind,
        depth: int,
    ) -> None:
        for _ in range(size):
            start = self.source.position
            if nullable:
                items.append(self.nullable(nullable, depth + 1))
            else:
                items.append(self.body(kind.name, kind.arguments, depth + 1))
            self._counted(start)

    def _natural_order(self) -> None:
        start = self.source.position
        if self.class_name() is not None:
            self.source.fail("a sorted collection with an order of its own", start)

    def _map(self, name: str, arguments: tuple[Kind, ...], depth: int) -> object:
        size = self.size()
        if size is None:
            return None
        if name in SORTED:
            self._natural_order()
        kinds = arguments if len(arguments) == 2 else (_ANY, _ANY)
        bare = name in IMMUTABLE_MAPS
        flat: list[object] = []
        for index in range(2 * size):
            start, kind = self.source.position, kinds[index % 2]
            if not kind.is_final:
                flat.append(self.value(kind, depth + 1))
            elif bare:
                flat.append(self.body(kind.name, kind.arguments, depth + 1))
            else:
                flat.append(self.nullable(kind, depth + 1))
            self._counted(start)
        return java_map(list(zip(flat[::2], flat[1::2], strict=True)), name)

    def _object(
        self, name: str, declared: list[tuple[str, Kind]], depth: int
    ) -> JavaObject:
        fields: dict[str, object] = {}
        for field, kind in declared:
            if kind.name in BOXED_OF_PRIMITIVE:
                fields[field] = _PRIMITIVES[kind.name](self)
            elif kind.is_final:
                fields[field] = self.nullable(kind, depth + 1)
            else:
                fields[field] = self.value(kind, depth + 1)
        return JavaObject(name, fields)

    def enum(self, name: str, constants: tuple[str, ...]) -> object:
        """Read a constant by its number."""
        number = self.varint()
        if number == 0:
            return None
        if not 0 < number <= len(constants):
            self._fail(f"constant {number - 1} of {name}, which has {len(constants)}")
        return JavaEnum(name, constants[number - 1])

    def _special(
        self, name: str, arguments: tuple[Kind, ...], depth: int, start: int
    ) -> object:
        if name in TEXTS:
            text = self.string()
            return None if text is None else JavaValue(name, text)
        if VIEW.fullmatch(name) and not self._dialect.views_are_java:
            items = self._collection_or_map(name, arguments, depth)
            return items
        if name == "java.util.Optional":
            return JavaValue(
                name, self.value(arguments[0] if arguments else _ANY, depth + 1)
            )
        if name.startswith(_COLLECTIONS):
            found = self._few(name.removeprefix(_COLLECTIONS), depth)
            if found is not None:
                return found
        if name in ("java.util.RegularEnumSet", "java.util.JumboEnumSet"):
            return self._enum_set(name)
        if VIEW.fullmatch(name):
            self.source.fail(
                f"{name} is embedded Java serialization, which we do not read", start
            )
        self.source.fail(
            f"{name} is opaque: Kryo writes its fields without their names or number; declare them,"
            f" Kryo5Codec(classes={{{name!r}: [(field, type), …]}}), or for an enum its constants",
            start,
        )

    def _collection_or_map(
        self, name: str, arguments: tuple[Kind, ...], depth: int
    ) -> object:
        if "Map" in name:
            found = self._map("java.util.LinkedHashMap", arguments, depth)
            return JavaMap(found, name) if isinstance(found, dict) else found
        items = self._collection(ARRAY_LIST, arguments, depth)
        if not isinstance(items, list):
            return items
        return JavaSet(items, name) if "Set" in name else JavaList(items, name)

    def _few(self, name: str, depth: int) -> object:
        full = _COLLECTIONS + name
        if name == "EmptyList":
            return JavaList([], full)
        if name == "EmptySet":
            return JavaSet([], full)
        if name == "EmptyMap":
            return JavaMap({}, full)
        if name == "SingletonList":
            return JavaList([self.value(_ANY, depth + 1)], full)
        if name == "SingletonSet":
            return JavaSet([self.value(_ANY, depth + 1)], full)
        if name == "SingletonMap":
            key, value = self.value(_ANY, depth + 1), self.value(_ANY, depth + 1)
            return java_map([(key, value)], full)
        return None

    def _enum_set(self, name: str) -> object:
        start = self.source.position
        element = self.class_name() or ""
        constants = self._declared.constants(element)
        if not constants:
            self.source.fail(
                f"{element} is an enum whose constants are not declared", start
            )
        size = self.varint()
        self.source.count(max(size, 0))
        return JavaSet([self.enum(element, constants) for _ in range(size)], name)

    def uuid(self) -> UUID:
        """Read a UUID in the form of the dialect."""
        if self._dialect.uuid_has_fields:
            least, most = self.zigzag_long(), self.zigzag_long()
        else:
            most, least = self._fixed(8), self._fixed(8)
        return UUID(int=(most % 2**64 << 64) | least % 2**64)

    def big_integer(self) -> BigInteger | None:
        """Read a BigInteger, big-endian two's complement."""
        size = self.size()
        if size is None:
            return None
        return read_big_integer(self.source.take(size))

    def big_decimal(self) -> object:
        """Read a BigDecimal: unscaled value and scale."""
        unscaled = self.big_integer()
        if unscaled is None:
            return None
        return as_decimal(unscaled, self.zigzag())

    def locale(self) -> JavaValue:
        """Read a Locale."""
        parts = [self.text(), self.text(), self.text()]
        if any("_" in part for part in parts):
            self._fail("a Locale with an underscore")
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return JavaValue("java.util.Locale", "_".join(parts))

    def pattern(self) -> JavaValue:
        """Read a Pattern: its text, or its text and flags."""
        text, flags = self.text(), self.varint()
        return JavaValue("java.util.regex.Pattern", [text, flags] if flags else text)

    def local_date(self) -> tuple[int, int, int]:
        """Read year, month and day."""
        return self.varint(), self.source.byte(), self.source.byte()

    def local_time(self) -> tuple[int, int, int, int]:
        """Read hour, minute, second and nanosecond."""
        return read_time(self.source, self.varint)

    def offset(self) -> int:
        """Read a ZoneOffset, in seconds."""
        return read_offset(self.source, lambda: self._fixed(4))

    def duration(self) -> object:
        """Read a Duration."""
        return java_time.duration(self._fixed(8), self.varint())


_Read = Callable[[KryoReader], object]


def _float(reader: KryoReader) -> float:
    return reader.source.floating(LE_FLOAT)


def _double(reader: KryoReader) -> float:
    return reader.source.floating(LE_DOUBLE)


def _fixed(size: int) -> Callable[[KryoReader], int]:
    return lambda reader: int.from_bytes(
        reader.source.take(size), "little", signed=True
    )


def _char(reader: KryoReader) -> Char:
    return Char(chr(int.from_bytes(reader.source.take(2), "little")))


#: Bare values of fields and arrays.
_PRIMITIVES: dict[str, _Read] = {
    "boolean": KryoReader.flag,
    "byte": _fixed(1),
    "short": _fixed(2),
    "int": KryoReader.zigzag,
    "long": KryoReader.zigzag_long,
    "char": _char,
    "float": lambda reader: Float(_float(reader)),
    "double": _double,
}

_BODIES: dict[str, _Read] = {
    "java.lang.Boolean": KryoReader.flag,
    "java.lang.Byte": lambda reader: Byte(_fixed(1)(reader)),
    "java.lang.Character": _char,
    "java.lang.Class": KryoReader.class_object,
    "java.lang.Double": _double,
    "java.lang.Float": lambda reader: Float(_float(reader)),
    "java.lang.Integer": KryoReader.zigzag,
    "java.lang.Long": lambda reader: Long(reader.zigzag_long()),
    "java.lang.Short": lambda reader: Short(_fixed(2)(reader)),
    "java.lang.String": KryoReader.string,
    "java.math.BigDecimal": KryoReader.big_decimal,
    "java.math.BigInteger": KryoReader.big_integer,
    "java.sql.Date": lambda reader: JavaValue("java.sql.Date", reader.varlong()),
    "java.sql.Time": lambda reader: JavaValue("java.sql.Time", reader.varlong()),
    "java.time.Duration": KryoReader.duration,
    "java.time.Instant": lambda reader: Instant(reader.varlong(), reader.varint()),
    "java.time.LocalDate": lambda reader: java_time.local_date(*reader.local_date()),
    "java.time.LocalDateTime": lambda reader: java_time.local_date_time(
        *reader.local_date(), *reader.local_time()
    ),
    "java.time.LocalTime": lambda reader: java_time.local_time(*reader.local_time()),
    "java.time.OffsetDateTime": lambda reader: java_time.offset_date_time(
        (*reader.local_date(), *reader.local_time()), reader.offset()
    ),
    "java.time.ZoneOffset": lambda reader: JavaValue(
        "java.time.ZoneOffset", java_time.offset_text(reader.offset())
    ),
    "java.time.ZoneRegion": lambda reader: JavaValue(
        "java.time.ZoneRegion", reader.text()
    ),
    "java.time.ZonedDateTime": lambda reader: java_time.zoned_date_time(
        (*reader.local_date(), *reader.local_time()), reader.text()
    ),
    "java.util.Date": lambda reader: java_date(reader.varlong()),
    "java.util.Locale": KryoReader.locale,
    "java.util.UUID": KryoReader.uuid,
    "java.util.regex.Pattern": KryoReader.pattern,
}
