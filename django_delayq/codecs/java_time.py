"""The values of ``java.time`` as numbers, as Python's types and as text.

LocalDate is a ``date``, LocalTime a ``time``, LocalDateTime a naive ``datetime``, Duration a
``timedelta``, Instant an ``Instant``. Java counts nanoseconds and knows more years. Values that
Python's types cannot hold, and zoned times, are JavaValues with the text of ``toString``.
"""

import re
from datetime import date, datetime, time, timedelta

from django_delayq.codecs.values import EPOCH, Instant, JavaValue, java_date
from django_delayq.exceptions import EncodeError

INSTANT = "java.time.Instant"
LOCAL_DATE = "java.time.LocalDate"
LOCAL_TIME = "java.time.LocalTime"
LOCAL_DATE_TIME = "java.time.LocalDateTime"
OFFSET_DATE_TIME = "java.time.OffsetDateTime"
ZONED_DATE_TIME = "java.time.ZonedDateTime"
DURATION = "java.time.Duration"

_DATE = r"(?P<year>[+-]?[0-9]{4,9})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_TIME = (
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
)
_OFFSET = r"(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?)"
_PATTERNS = {
    LOCAL_DATE: re.compile(_DATE, re.ASCII),
    LOCAL_TIME: re.compile(_TIME, re.ASCII),
    LOCAL_DATE_TIME: re.compile(f"{_DATE}T{_TIME}", re.ASCII),
    INSTANT: re.compile(f"{_DATE}T{_TIME}Z", re.ASCII),
    OFFSET_DATE_TIME: re.compile(f"{_DATE}T{_TIME}{_OFFSET}", re.ASCII),
    ZONED_DATE_TIME: re.compile(
        rf"{_DATE}T{_TIME}{_OFFSET}?(?:\[(?P<zone>[^\[\]]+)\])?", re.ASCII
    ),
    DURATION: re.compile(
        r"PT(?:(?P<hours>-?[0-9]{1,19})H)?(?:(?P<minutes>-?[0-9]{1,19})M)?"
        r"(?:(?P<sign>-)?(?P<seconds>[0-9]{1,19})(?:\.(?P<fraction>[0-9]{1,9}))?S)?",
        re.ASCII,
    ),
}


#: Classes whose text ``parse_java_time`` reads.
READABLE = frozenset(_PATTERNS)


def local_date(year: int, month: int, day: int) -> object:
    """Return a ``date``, or a JavaValue outside the years 1 … 9999; ValueError if there is no such date."""
    if 1 <= year <= 9999:
        return date(year, month, day)
    return JavaValue(LOCAL_DATE, _date_text(year, month, day))


def local_time(hour: int, minute: int, second: int, nano: int) -> object:
    """Return a ``time``, or a JavaValue if it has a fraction of a microsecond."""
    micros = _micros(nano)
    if micros is not None:
        return time(hour, minute, second, micros)
    time(hour, minute, second)
    return JavaValue(LOCAL_TIME, _time_text(hour, minute, second, nano))


def local_date_time(
    year: int, month: int, day: int, hour: int, minute: int, second: int, nano: int
) -> object:
    """Return a naive ``datetime``, or a JavaValue where ``local_date`` or ``local_time`` returns one."""
    micros = _micros(nano)
    if micros is not None and 1 <= year <= 9999:
        return datetime(year, month, day, hour, minute, second, micros)  # noqa: DTZ001 - Java's has no zone either
    time(hour, minute, second)
    text = f"{_date_text(year, month, day)}T{_time_text(hour, minute, second, nano)}"
    return JavaValue(LOCAL_DATE_TIME, text)


def duration(seconds: int, nano: int) -> object:
    """Return a ``timedelta``, or a JavaValue for a fraction of a microsecond or for 10⁹ days and more."""
    micros = _micros(nano)
    if micros is not None:
        try:
            return timedelta(seconds=seconds, microseconds=micros)
        except OverflowError:
            pass
    return JavaValue(DURATION, duration_text((seconds, nano)))


def offset_date_time(
    local: tuple[int, ...], offset_seconds: int, zone: str = ""
) -> JavaValue:
    """Return the JavaValue of an OffsetDateTime, or of a ZonedDateTime if ``zone`` names one.

    ``local``: year, month, day, hour, minute, second, nano.
    """
    year, month, day, hour, minute, second, nano = local
    time(hour, minute, second)
    text = f"{_date_text(year, month, day)}T{_time_text(hour, minute, second, nano)}"
    text += offset_text(offset_seconds)
    if not zone:
        return JavaValue(OFFSET_DATE_TIME, text)
    return JavaValue(
        ZONED_DATE_TIME,
        text if zone == offset_text(offset_seconds) else f"{text}[{zone}]",
    )


def zoned_date_time(local: tuple[int, ...], zone: str) -> JavaValue:
    """Return the JavaValue of a ZonedDateTime that was written with its zone, but without its offset.

    The text is that of ``toString`` without the offset: ``2024-02-29T12:00[Asia/Shanghai]``.
    """
    if not re.fullmatch(r"[^\[\]]+", zone):
        raise ValueError(f"zone {zone!r}")
    value = offset_date_time(local, 0)
    text = str(value.value).removesuffix("Z")
    plain = re.fullmatch(_OFFSET, zone, re.ASCII) is not None
    return JavaValue(ZONED_DATE_TIME, text + zone if plain else f"{text}[{zone}]")


def zone_of(value: JavaValue) -> str:
    """Return the zone of a ZonedDateTime: its name, or else its offset.

    Raises:
        EncodeError: the text has neither.
    """
    found = _match(value, ZONED_DATE_TIME)
    zone = found["zone"] or found["offset"]
    if zone is None:
        raise EncodeError(f"{value!r} has no zone")
    return zone


def split_date(value: object) -> tuple[int, int, int]:
    """Return year, month and day of a ``date``, or of a LocalDate as a JavaValue."""
    if isinstance(value, date):
        return value.year, value.month, value.day
    found = _match(value, LOCAL_DATE)
    return int(found["year"]), int(found["month"]), int(found["day"])


def split_time(value: object) -> tuple[int, int, int, int]:
    """Return hour, minute, second and nanosecond of a ``time`` or ``datetime``, or JavaValue."""
    if isinstance(value, time | datetime):
        return value.hour, value.minute, value.second, value.microsecond * 1000
    found = _match(value, getattr(value, "class_name", LOCAL_TIME))
    return (
        int(found["hour"]),
        int(found["minute"]),
        int(found["second"] or 0),
        _nano(found),
    )


def split_date_time(value: object) -> tuple[int, ...]:
    """Return year … nanosecond of a naive ``datetime``, or of a local or zoned JavaValue."""
    if isinstance(value, datetime):
        return (*split_date(value), *split_time(value))
    found = _match(value, getattr(value, "class_name", LOCAL_DATE_TIME))
    return (
        int(found["year"]),
        int(found["month"]),
        int(found["day"]),
        *split_time(value),
    )


def split_offset(value: JavaValue) -> tuple[int, str]:
    """Return the offset of a zoned JavaValue in seconds, and the name of its zone."""
    found = _match(value, value.class_name)
    offset = found["offset"]
    if offset is None:
        raise EncodeError(
            f"{value!r} names its zone, but not the offset that this format needs"
        )
    seconds = 0
    if offset != "Z":
        digits = offset[1:].replace(":", "").ljust(6, "0")
        seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
        seconds = -seconds if offset[0] == "-" else seconds
    return seconds, found.groupdict().get("zone") or offset


def split_duration(value: object) -> tuple[int, int]:
    """Return seconds and nanoseconds, 0 … 999,999,999, of a ``timedelta`` or JavaValue."""
    if isinstance(value, timedelta):
        return value.days * 86400 + value.seconds, value.microseconds * 1000
    found = _match(value, DURATION)
    seconds, nano = int(found["seconds"] or 0), _nano(found)
    total = (-1 if found["sign"] else 1) * (seconds * 10**9 + nano)
    total += (int(found["hours"] or 0) * 3600 + int(found["minutes"] or 0) * 60) * 10**9
    return divmod(total, 10**9)


def duration_text(value: object) -> str:
    """Write a Duration as its ``toString`` does: ``PT25H1M1.001S``."""
    seconds, nano = value if isinstance(value, tuple) else split_duration(value)
    total = abs(seconds * 10**9 + nano)
    minus = "-" if seconds < 0 else ""
    rest, nano = divmod(total, 10**9)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    text = "PT"
    text += f"{minus}{hours}H" if hours else ""
    text += f"{minus}{minutes}M" if minutes else ""
    if rest or nano or text == "PT":
        text += f"{minus}{rest}{_fraction(nano)}S"
    return text


def instant_text(value: Instant) -> str:
    """Write an Instant as its ``toString`` does: ``2023-11-14T22:13:20.123456789Z``."""
    try:
        moment = EPOCH + timedelta(seconds=value.seconds)
    except OverflowError:
        raise EncodeError(f"{value!r} is outside the years 1 … 9999") from None
    return (
        f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + _fraction(value.nano, by=3) + "Z"
    )


def local_text(value: date | time) -> str:
    """Write a local date or time as Jackson 3 does: ``2024-02-29T23:59:58.000007``."""
    if isinstance(value, datetime):
        return f"{local_text(value.date())}T{local_text(value.time())}"
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:%H:%M:%S}{_fraction(value.microsecond * 1000)}"


def jackson_text(value: JavaValue) -> str:
    """Write a zoned JavaValue as Jackson 3 does: with seconds, and with the offset instead of the zone."""
    found = _match(value, value.class_name)
    seconds = found["second"] or "00"
    return (
        f"{found['year']}-{found['month']}-{found['day']}T{found['hour']}:{found['minute']}:"
        f"{seconds}{_fraction(_nano(found))}{found['offset'] or ''}"
    )


def offset_text(seconds: int) -> str:
    """Write a ZoneOffset: ``Z``, ``+08:00``."""
    if not seconds:
        return "Z"
    sign = "-" if seconds < 0 else "+"
    hours, rest = divmod(abs(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{sign}{hours:02}:{minutes:02}" + (f":{rest:02}" if rest else "")


def parse_java_time(class_name: str, text: str) -> object:
    """Read the text of a value of a READABLE class; return a JavaValue if Python has no such type.

    Raises:
        ValueError: the text is not of this class.
    """
    if class_name == LOCAL_DATE:
        return local_date(*split_date(JavaValue(class_name, text)))
    if class_name == LOCAL_TIME:
        return local_time(*split_time(JavaValue(class_name, text)))
    if class_name == LOCAL_DATE_TIME:
        return local_date_time(*split_date_time(JavaValue(class_name, text)))
    if class_name == DURATION:
        return duration(*split_duration(JavaValue(class_name, text)))
    if class_name == INSTANT:
        year, month, day, hour, minute, second, nano = split_date_time(
            JavaValue(class_name, text)
        )
        if not 1 <= year <= 9999:
            return JavaValue(class_name, text)
        since = (
            datetime(year, month, day, hour, minute, second, tzinfo=EPOCH.tzinfo)
            - EPOCH
        )
        return Instant(since.days * 86400 + since.seconds, nano)
    value = JavaValue(class_name, text)
    split_date_time(value)
    return value


def parse_date(text: str) -> object:
    """Read a ``java.util.Date`` as Jackson 3 writes it: ``2023-11-14T22:13:20.123Z``."""
    found = parse_java_time(INSTANT, text)
    if isinstance(found, Instant):
        return java_date(found.seconds * 1000 + found.nano // 10**6)
    return JavaValue("java.util.Date", text)


def _match(value: object, class_name: str) -> re.Match[str]:
    text = value.value if isinstance(value, JavaValue) else None
    pattern = _PATTERNS.get(class_name)
    found = pattern.fullmatch(text) if pattern and isinstance(text, str) else None
    if found is None or text == "PT":
        raise EncodeError(f"{value!r} is not a {class_name}")
    return found


def _nano(found: re.Match[str]) -> int:
    return int((found["fraction"] or "").ljust(9, "0"))


def _micros(nano: int) -> int | None:
    micros, rest = divmod(nano, 1000)
    if not 0 <= nano < 10**9:
        raise ValueError(f"{nano} nanoseconds")
    return None if rest else micros


def _fraction(nano: int, by: int = 1) -> str:
    if not nano:
        return ""
    digits = f"{nano:09}".rstrip("0")
    return "." + digits.ljust(-(-len(digits) // by) * by, "0")


def _date_text(year: int, month: int, day: int) -> str:
    if not (abs(year) < 10**9 and 1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError(f"{year}-{month}-{day} is not a date")
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def _time_text(hour: int, minute: int, second: int, nano: int) -> str:
    text = f"{hour:02}:{minute:02}"
    return text + (f":{second:02}{_fraction(nano, by=3)}" if second or nano else "")
