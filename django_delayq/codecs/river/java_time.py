"""``java.time`` as Java serialization writes it: a ``java.time.Ser``, for River.

Shape: one block, a byte for the type and its fields, big-endian. A time ends with the complement
of its last part that is not zero: ``01 02 fc`` is 01:02:03.
"""

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta

from django_delayq.codecs import java_time
from django_delayq.codecs.binary import ByteReader, java_utf8
from django_delayq.codecs.compact_time import (
    offset_bytes,
    read_offset,
    read_time,
    time_bytes,
)
from django_delayq.codecs.java_text import utf16_units
from django_delayq.codecs.river.classes import Block
from django_delayq.codecs.values import Instant, JavaValue
from django_delayq.exceptions import EncodeError

CLASS_NAME = "java.time.Ser"
UID = int.from_bytes(bytes.fromhex("955d84ba1b2248b2"), "big", signed=True)

(
    _DURATION, _INSTANT, _LOCAL_DATE, _LOCAL_TIME, _LOCAL_DATE_TIME, _ZONED_DATE_TIME,
    _ZONE_REGION, _ZONE_OFFSET,
) = range(1, 9)  # fmt: skip
_OFFSET_DATE_TIME = 10


def read(written: tuple[object, ...]) -> object:
    """Return what a Ser stands for.

    Raises:
        ValueError: its type is not supported, or Java does not write it like this.
    """
    blocks = b"".join(part for part in written if isinstance(part, Block))
    source = ByteReader(blocks, CLASS_NAME)
    kind = source.byte()
    if kind not in _READERS:
        raise ValueError(f"type {kind} of java.time.Ser is not supported")
    value = _READERS[kind](source)
    if source.left:
        raise ValueError(f"{source.left} bytes too many")
    return value


def write(value: object) -> bytes:
    """Return the block of a Ser for a date, time, naive datetime, timedelta, Instant or JavaValue.

    Raises:
        EncodeError: ``java.time`` has no such value.
    """
    name = getattr(value, "class_name", "")
    if isinstance(value, Instant):
        return struct.pack(">bqi", _INSTANT, value.seconds, value.nano)
    if isinstance(value, timedelta) or name == java_time.DURATION:
        return struct.pack(">bqi", _DURATION, *java_time.split_duration(value))
    if isinstance(value, datetime) or name == java_time.LOCAL_DATE_TIME:
        return bytes([_LOCAL_DATE_TIME]) + _local(java_time.split_date_time(value))
    if isinstance(value, date) or name == java_time.LOCAL_DATE:
        return struct.pack(">biBB", _LOCAL_DATE, *java_time.split_date(value))
    if isinstance(value, time) or name == java_time.LOCAL_TIME:
        return bytes([_LOCAL_TIME]) + time_bytes(java_time.split_time(value))
    if isinstance(value, JavaValue) and name in (
        java_time.OFFSET_DATE_TIME,
        java_time.ZONED_DATE_TIME,
    ):
        seconds, zone = java_time.split_offset(value)
        local = _local(java_time.split_date_time(value)) + offset_bytes(seconds)
        if name == java_time.OFFSET_DATE_TIME:
            return bytes([_OFFSET_DATE_TIME]) + local
        return bytes([_ZONED_DATE_TIME]) + local + _zone(seconds, zone)
    raise EncodeError(f"{value!r} cannot be written by java.time.Ser")


def _local(parts: tuple[int, ...]) -> bytes:
    return struct.pack(">iBB", *parts[:3]) + time_bytes(parts[3:])


def _zone(seconds: int, zone: str) -> bytes:
    if zone == java_time.offset_text(seconds):
        return bytes([_ZONE_OFFSET]) + offset_bytes(seconds)
    return struct.pack(">bI", _ZONE_REGION, utf16_units(zone)) + java_utf8(zone)


def _int(source: ByteReader) -> int:
    return source.integer(4, signed=True)


def _date(source: ByteReader) -> tuple[int, int, int]:
    return _int(source), source.byte(), source.byte()


def _time(source: ByteReader) -> tuple[int, int, int, int]:
    return read_time(source, lambda: _int(source))


def _offset(source: ByteReader) -> int:
    return read_offset(source, lambda: _int(source))


def _read_instant(source: ByteReader) -> object:
    return Instant(source.integer(8, signed=True), _int(source))


def _read_zoned(source: ByteReader) -> object:
    local, offset, kind = (
        (*_date(source), *_time(source)),
        _offset(source),
        source.byte(),
    )
    if kind == _ZONE_REGION:
        zone = source.java_text(source.integer(4))
    elif kind == _ZONE_OFFSET:
        zone = java_time.offset_text(_offset(source))
    else:
        raise ValueError(f"zone of type {kind}")
    return java_time.offset_date_time(local, offset, zone)


_READERS: dict[int, Callable[[ByteReader], object]] = {
    _DURATION: lambda source: java_time.duration(
        source.integer(8, signed=True), _int(source)
    ),
    _INSTANT: _read_instant,
    _LOCAL_DATE: lambda source: java_time.local_date(*_date(source)),
    _LOCAL_TIME: lambda source: java_time.local_time(*_time(source)),
    _LOCAL_DATE_TIME: lambda source: java_time.local_date_time(
        *_date(source), *_time(source)
    ),
    _ZONED_DATE_TIME: _read_zoned,
    _OFFSET_DATE_TIME: lambda source: java_time.offset_date_time(
        (*_date(source), *_time(source)), _offset(source)
    ),
}
