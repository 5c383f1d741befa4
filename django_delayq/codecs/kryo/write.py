"""Writes Kryo 5 without references, as Redisson sets it up."""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django_delayq.codecs import java_time
from django_delayq.codecs.binary import twos_complement
from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.codecs.compact_time import offset_bytes, time_bytes
from django_delayq.codecs.decimals import split_decimal
from django_delayq.codecs.java_class import class_of
from django_delayq.codecs.java_text import epoch_millis
from django_delayq.codecs.kryo.kinds import (
    BOXED_OF_PRIMITIVE,
    ID_OF_CLASS,
    IMMUTABLE_LISTS,
    IMMUTABLE_MAPS,
    IMMUTABLE_SETS,
    LISTS,
    MAPS,
    PRIMITIVE_OF_LETTER,
    SETS,
    SORTED,
    TEXTS,
    VIEW,
    Declarations,
    Kind,
    KryoDialect,
)
from django_delayq.codecs.kryo.output import KryoOutput
from django_delayq.codecs.values import (
    ARRAY_LIST,
    LINKED_HASH_MAP,
    LONG_MAX,
    LONG_MIN,
    Instant,
    JavaEnum,
    JavaObject,
    JavaValue,
    in_order,
)
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_ANY = Kind("object")
_COLLECTIONS = "java.util.Collections$"
_OFFSET = re.compile(r"Z|[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?", re.ASCII)


class KryoWriter(KryoOutput):
    """Writes one value, once."""

    def __init__(self, dialect: KryoDialect, declared: Declarations) -> None:
        super().__init__()
        self._dialect = dialect
        self._declared = declared

    def write(self, value: object) -> bytes:
        """Return the payload.

        Raises:
            EncodeError: the format cannot hold the value, or one inside it.
        """
        self.value(value, _ANY, 0)
        return bytes(self._out)

    def value(self, value: object, kind: Kind, depth: int) -> None:
        """Write an object with its class; the type arguments of ``kind`` apply to it."""
        if value is None:
            self._out.append(0)
            return
        name = class_of(value)
        self.class_name(name)
        self.body(name, value, kind.arguments, depth)

    def body(
        self, name: str, value: Any, arguments: tuple[Kind, ...], depth: int
    ) -> None:
        """Write an object of a known class."""
        if depth > MAX_DEPTH:
            raise EncodeError(
                f"nested deeper than {MAX_DEPTH} levels, or inside of itself"
            )
        write = _BODIES.get(name)
        if write is not None:
            write(self, value)
        elif name.startswith("["):
            self._array(name, value, depth)
        elif (
            name in LISTS
            or name in SETS
            or name in IMMUTABLE_LISTS
            or name in IMMUTABLE_SETS
        ):
            self._collection(name, value, arguments, depth)
        elif name in MAPS or name in IMMUTABLE_MAPS:
            self._map(name, value, arguments, depth)
        elif constants := self._declared.constants(name):
            self.enum(name, value, constants)
        elif (fields := self._declared.fields(name)) is not None:
            self._object(name, value, fields, depth)
        else:
            self._special(name, value, arguments, depth)

    def nullable(self, value: object, kind: Kind, depth: int) -> None:
        """Write an object of a known class that may be null."""
        if value is None:
            self._out.append(0x80 if kind.name in _TEXT_CLASSES else 0)
            return
        if class_of(value) != kind.name:
            raise EncodeError(f"{show(value)} is not a {kind.name}, as declared")
        if not self._declared.accepts_null(kind.name):
            self._out.append(1)
        self.body(kind.name, value, kind.arguments, depth)

    def class_object(self, value: JavaValue) -> None:
        """Write a ``java.lang.Class``."""
        name = str(value.value)
        primitive = name in BOXED_OF_PRIMITIVE
        name = BOXED_OF_PRIMITIVE.get(name, name)
        self.class_name(name)
        is_number = name in ID_OF_CLASS and name != "java.lang.String"
        if self._dialect.class_has_flag or is_number:
            self._out.append(primitive)

    def _array(self, name: str, value: Any, depth: int) -> None:
        component = name[1:]
        if component == "B":
            self.varint(len(bytes(value)) + 1)
            self._out += bytes(value)
            return
        self.varint(len(value) + 1)
        if component in PRIMITIVE_OF_LETTER:
            for item in value:
                self.primitive(PRIMITIVE_OF_LETTER[component], item)
            return
        element = component if component.startswith("[") else component[1:-1]
        kind, final = Kind(element), self._declared.is_final(element)
        for item in value:
            if final:
                self.nullable(item, kind, depth + 1)
            else:
                self.value(item, _ANY, depth + 1)

    def _collection(
        self,
        name: str,
        value: Iterable[object],
        arguments: tuple[Kind, ...],
        depth: int,
    ) -> None:
        items = in_order(value) if isinstance(value, Set) else list(value)
        immutable = name in IMMUTABLE_LISTS or name in IMMUTABLE_SETS
        keeps_null = not immutable or self._dialect.immutable_has_null
        kind = arguments[0] if arguments else _ANY
        number, has_null = len(items) + 1, any(item is None for item in items)
        names = {class_of(item) for item in items if item is not None}
        same = len(names) <= 1
        if not items:
            self._out.append(1)
        elif kind.is_final and not keeps_null:
            self.varint(number)
        else:
            self.flagged(has_null if kind.is_final else same, number)
        if name in SORTED:
            self._out.append(0)
        if not items:
            return
        if kind.is_final:
            for item in items:
                self._final_element(item, kind, has_null, depth)
        elif same and not names:
            self._out.append(0)
        elif same:
            element = Kind(names.pop(), kind.arguments)
            self.class_name(element.name)
            if keeps_null:
                self._out.append(has_null)
            for item in items:
                self._final_element(item, element, has_null and keeps_null, depth)
        else:
            for item in items:
                self.value(item, kind, depth + 1)

    def _final_element(
        self, item: object, kind: Kind, nullable: bool, depth: int
    ) -> None:
        if nullable:
            self.nullable(item, kind, depth + 1)
        elif class_of(item) != kind.name:
            raise EncodeError(f"{show(item)} is not a {kind.name}, as declared")
        else:
            self.body(kind.name, item, kind.arguments, depth + 1)

    def _map(
        self,
        name: str,
        value: Mapping[object, object],
        arguments: tuple[Kind, ...],
        depth: int,
    ) -> None:
        self.varint(len(value) + 1)
        if name in SORTED:
            self._out.append(0)
        kinds = arguments if len(arguments) == 2 else (_ANY, _ANY)
        for pair in value.items():
            for part, kind in zip(pair, kinds, strict=True):
                if not kind.is_final:
                    self.value(part, kind, depth + 1)
                else:
                    self._final_element(part, kind, name not in IMMUTABLE_MAPS, depth)

    def enum(self, name: str, value: object, constants: tuple[str, ...]) -> None:
        """Write a constant as its number."""
        if not isinstance(value, JavaEnum) or value.name not in constants:
            raise EncodeError(f"{show(value)} is not a constant of {name}: {constants}")
        self.varint(constants.index(value.name) + 1)

    def _object(
        self, name: str, value: object, declared: list[tuple[str, Kind]], depth: int
    ) -> None:
        if not isinstance(value, JavaObject):
            raise EncodeError(f"{show(value)} is not a {name}")
        if set(value.fields) != {field for field, _ in declared}:
            odd = sorted(set(value.fields) ^ {field for field, _ in declared})
            raise EncodeError(f"{name} has other fields than those declared: {odd}")
        for field, kind in declared:
            part = value.fields[field]
            if kind.name in BOXED_OF_PRIMITIVE:
                self.primitive(kind.name, part)
            elif kind.is_final:
                self.nullable(part, kind, depth + 1)
            else:
                self.value(part, kind, depth + 1)

    def _special(
        self, name: str, value: Any, arguments: tuple[Kind, ...], depth: int
    ) -> None:
        said = value.value if isinstance(value, JavaValue) else None
        if name in TEXTS and isinstance(said, str):
            self.string(said)
        elif name == "java.util.Optional" and isinstance(value, JavaValue):
            self.value(said, arguments[0] if arguments else _ANY, depth + 1)
        elif VIEW.fullmatch(name) and not self._dialect.views_are_java:
            if isinstance(value, dict):
                self._map(LINKED_HASH_MAP, value, arguments, depth)
            else:
                self._collection(ARRAY_LIST, value, arguments, depth)
        elif name.startswith(_COLLECTIONS) and self._few(
            name.removeprefix(_COLLECTIONS), value, depth
        ):
            pass
        elif name in ("java.util.RegularEnumSet", "java.util.JumboEnumSet"):
            self._enum_set(value)
        else:
            raise EncodeError(
                f"Kryo5Codec cannot write a {name}; declare it,"
                f" Kryo5Codec(classes={{{name!r}: [(field, type), …]}}), or for an enum its"
                " constants"
            )

    def _few(self, name: str, value: Any, depth: int) -> bool:
        """Write one of Java's own empty or single-element collections."""
        if name in ("EmptyList", "EmptySet", "EmptyMap"):
            fits = not value
        elif name in ("SingletonList", "SingletonSet", "SingletonMap"):
            fits = len(value) == 1
        else:
            return False
        if not fits:
            raise EncodeError(f"{show(value)} is not a {name}")
        for item in value:
            self.value(item, _ANY, depth + 1)
            if isinstance(value, dict):
                self.value(value[item], _ANY, depth + 1)
        return True

    def _enum_set(self, value: Iterable[object]) -> None:
        items = [item for item in value if isinstance(item, JavaEnum)]
        constants = self._declared.constants(items[0].class_name) if items else None
        if not constants:
            raise EncodeError(
                "an EnumSet that is empty, or of an enum that is not declared"
            )
        self.class_name(items[0].class_name)
        self.varint(len(items))
        for item in items:
            self.enum(items[0].class_name, item, constants)

    def uuid(self, value: UUID) -> None:
        """Write a UUID in the form of the dialect."""
        most, least = struct.unpack(">qq", value.bytes)
        if self._dialect.uuid_has_fields:
            self.zigzag_long(least)
            self.zigzag_long(most)
        else:
            self._out += struct.pack("<qq", most, least)

    def big_integer(self, value: int) -> None:
        """Write a BigInteger, big-endian two's complement."""
        raw = twos_complement(value)
        self.varint(len(raw) + 1)
        self._out += raw

    def big_decimal(self, value: Decimal) -> None:
        """Write a BigDecimal: unscaled value and scale."""
        unscaled, scale = split_decimal(value)
        self.big_integer(unscaled)
        self.zigzag(scale)

    def date(self, value: object) -> None:
        """Write a ``java.util.Date``, or one of ``java.sql``."""
        millis = epoch_millis(value) if isinstance(value, datetime) else _whole(value)
        if not LONG_MIN <= millis <= LONG_MAX:
            raise EncodeError(f"{millis} ms do not fit into a Date")
        self.varlong(millis)

    def locale(self, value: JavaValue) -> None:
        """Write a Locale: language, country, variant."""
        parts = str(value.value).split("_", 2)
        for part in (*parts, "", "")[:3]:
            self.string(part)

    def pattern(self, value: JavaValue) -> None:
        """Write a Pattern: its text and flags."""
        said = value.value
        text, flags = said if isinstance(said, list) else (said, 0)
        self.string(str(text))
        self.varint(_whole(flags))

    def text(self, value: JavaValue) -> None:
        """Write a value that is one text."""
        self.string(str(value.value))

    def local_date(self, value: object) -> None:
        """Write year, month and day."""
        year, month, day = java_time.split_date(value)
        self.varint(year)
        self._out += bytes([month, day])

    def local_time(self, value: object) -> None:
        """Write hour, minute, second and nanosecond, without the zeros at the end."""
        self._time(java_time.split_time(value))

    def _time(self, parts: tuple[int, ...]) -> None:
        self._out += time_bytes(parts, lambda nano: b"")
        if parts[3]:
            self.varint(parts[3])

    def local_date_time(self, value: object) -> None:
        """Write a date and a time."""
        year, month, day, *rest = java_time.split_date_time(value)
        self.varint(year)
        self._out += bytes([month, day])
        self._time(tuple(rest))

    def offset_date_time(self, value: JavaValue) -> None:
        """Write date, time and offset."""
        self.local_date_time(value)
        self._offset(java_time.split_offset(value)[0])

    def zoned_date_time(self, value: JavaValue) -> None:
        """Write date, time and the zone's name."""
        self.local_date_time(value)
        self.string(java_time.zone_of(value))

    def zone_offset(self, value: JavaValue) -> None:
        """Write a ZoneOffset."""
        if not _OFFSET.fullmatch(str(value.value)):
            raise EncodeError(f"{show(value)} is not a ZoneOffset")
        moment = JavaValue(java_time.OFFSET_DATE_TIME, f"2000-01-01T00:00{value.value}")
        self._offset(java_time.split_offset(moment)[0])

    def _offset(self, seconds: int) -> None:
        self._out += offset_bytes(
            seconds, lambda odd: odd.to_bytes(4, "little", signed=True)
        )

    def instant(self, value: Instant) -> None:
        """Write an Instant."""
        if not LONG_MIN <= value.seconds <= LONG_MAX:
            raise EncodeError(f"{value!r} does not fit into an Instant of Java")
        self.varlong(value.seconds)
        self.varint(value.nano)

    def duration(self, value: object) -> None:
        """Write a Duration."""
        seconds, nano = java_time.split_duration(value)
        if not LONG_MIN <= seconds <= LONG_MAX:
            raise EncodeError(f"{value!r} does not fit into a Duration of Java")
        self._out += seconds.to_bytes(8, "little", signed=True)
        self.varint(nano)


def _whole(value: object) -> int:
    said = value.value if isinstance(value, JavaValue) else value
    if not isinstance(said, int):
        raise EncodeError(f"{show(value)} does not hold a whole number")
    return said


_TEXT_CLASSES = ("java.lang.String", "java.lang.StringBuffer", "java.lang.StringBuilder",
                 "java.util.Currency")  # fmt: skip

_BODIES: dict[str, Callable[[KryoWriter, Any], None]] = {
    "java.lang.Boolean": lambda writer, value: writer.fixed("boolean", bool(value)),
    "java.lang.Byte": lambda writer, value: writer.fixed("byte", value),
    "java.lang.Character": lambda writer, value: writer.fixed("char", value),
    "java.lang.Class": KryoWriter.class_object,
    "java.lang.Double": lambda writer, value: writer.fixed("double", value),
    "java.lang.Float": lambda writer, value: writer.fixed("float", value),
    "java.lang.Integer": KryoWriter.zigzag,
    "java.lang.Long": KryoWriter.zigzag_long,
    "java.lang.Short": lambda writer, value: writer.fixed("short", value),
    "java.lang.String": lambda writer, value: writer.string(str.__str__(value)),
    "java.math.BigDecimal": KryoWriter.big_decimal,
    "java.math.BigInteger": KryoWriter.big_integer,
    "java.sql.Date": KryoWriter.date,
    "java.sql.Time": KryoWriter.date,
    "java.time.Duration": KryoWriter.duration,
    "java.time.Instant": KryoWriter.instant,
    "java.time.LocalDate": KryoWriter.local_date,
    "java.time.LocalDateTime": KryoWriter.local_date_time,
    "java.time.LocalTime": KryoWriter.local_time,
    "java.time.OffsetDateTime": KryoWriter.offset_date_time,
    "java.time.ZoneOffset": KryoWriter.zone_offset,
    "java.time.ZoneRegion": KryoWriter.text,
    "java.time.ZonedDateTime": KryoWriter.zoned_date_time,
    "java.util.Date": KryoWriter.date,
    "java.util.Locale": KryoWriter.locale,
    "java.util.UUID": KryoWriter.uuid,
    "java.util.regex.Pattern": KryoWriter.pattern,
}
