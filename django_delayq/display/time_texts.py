"""Times as pages and commands show them, and how long something lasted or has to wait."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import formats
from django.utils.translation import gettext_lazy

from django_delayq.jobs.occurrences import in_zone
from django_delayq.translations import gettext, seconds_text

#: A job that is held for longer is held without end: `_held.lua` writes a hundred years for that.
HELD_WITHOUT_END_MS = 50 * 365 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (
    (86_400_000, gettext_lazy("{count} d")),
    (3_600_000, gettext_lazy("{count} h")),
    (60_000, gettext_lazy("{count} min")),
    (1000, gettext_lazy("{count} s")),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of the server's clock."""

    #: Epoch ms.
    ms: int
    #: In the current time zone, to the second, as the current language writes dates; without the zone's name.
    in_seconds: str
    #: What follows it: the milliseconds, behind a point.
    fraction: str
    #: The zone's name, as it is at that time.
    zone: str
    #: As seen from the server's now: "in 2 h", "5 s ago".
    relative: str

    @classmethod
    def of(cls, ms: int | None, now_ms: int) -> "Moment | None":
        """Describe a time, if there is one; else return None."""
        if ms is None:
            return None
        try:
            moment = in_zone(_EPOCH + timedelta(milliseconds=ms))
            local, fraction = seconds_text(moment), f".{moment.microsecond // 1000:03}"
            zone = moment.tzname() or ""
        except OverflowError:
            # Java may wait beyond the end of Python's calendar.
            local = (
                gettext("after the year 9999")
                if ms > 0
                else gettext("before the year 1")
            )
            fraction = zone = ""
        return cls(ms, local, fraction, zone, relative_text(ms - now_ms))

    @classmethod
    def of_held(cls, ms: int, now_ms: int) -> "Moment":
        """Describe how long a job is held: until a time, or as long as it takes."""
        moment = cls.of(ms, now_ms)
        assert moment is not None
        if ms - now_ms < HELD_WITHOUT_END_MS:
            return moment
        return cls(ms, "", "", "", gettext("as long as it takes"))

    @property
    def local(self) -> str:
        """In the current time zone, to the millisecond."""
        return self.in_seconds + self.fraction

    @property
    def in_full(self) -> str:
        """In the current time zone, to the millisecond, with the zone's name."""
        return f"{self.local} {self.zone}".strip()


def relative_text(ms: int) -> str:
    """Say how far away a moment is, in two units at most: "in 2 h 5 min", "5 s ago", "now"."""
    if abs(ms) < 1000:
        return gettext("now")
    template = gettext("in {time}") if ms > 0 else gettext("{time} ago")
    return template.format(time=span_text(abs(ms)))


def span_text(ms: int) -> str:
    """Say how long a time of a second or more is, in two units at most: "2 h 5 min"."""
    if ms >= 3_652_500 * 86_400_000:
        return gettext("more than {count} years", count=10_000)
    left = ms
    first = next((i for i, (unit, _) in enumerate(_UNITS) if left >= unit), -1)
    parts = []
    for unit, name in _UNITS[first:][:2]:
        if left >= unit or first == -1:
            parts.append(name.format(count=left // unit))
        left %= unit
    return " ".join(parts)


def short_time_text(ms: float | None) -> str:
    """Write a measured time to two digits or so, as exact as those are; "-": nothing was measured."""
    if ms is None:
        return "-"
    if ms >= 60_000:
        return span_text(int(ms))
    if ms >= 1_000:
        return gettext("{count} s", count=_two_digits(ms / 1_000))
    if 0 < ms < 0.1:
        return gettext("{count} µs", count=_two_digits(ms * 1_000))
    return gettext("{count} ms", count=_two_digits(ms))


def _two_digits(number: float) -> str:
    if number >= 10:
        return f"{number:.0f}"
    return f"{number:.2g}".replace(".", formats.get_format("DECIMAL_SEPARATOR"))
