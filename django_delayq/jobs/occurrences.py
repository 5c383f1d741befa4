"""When a periodic schedule has its occurrences: `cron` and `every`.

An occurrence is epoch ms. Both answer one question, which occurrence comes after a given one, and remember nothing.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from django.conf import settings
from django.utils import timezone as timezones

from django_delayq.exceptions import InvalidSchedule
from django_delayq.redaction import show
from django_delayq.suggestions import suggestion
from django_delayq.wording import Wording, gettext, ngettext

#: The shortest interval: at each occurrence, each process of a queue makes a call.
SHORTEST = timedelta(seconds=1)
#: The longest interval.
LONGEST = timedelta(days=36_500)
#: The longest expression, characters.
MAX_EXPRESSION = 500
#: Later occurrences are none: a start time of the year 9,000 is no plan.
_LAST_MS = 221_845_219_200_000
#: No clock is set by more than this, and no two changes are so near each other. Samoa left out a day.
_NEAR = timedelta(hours=25)
_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")  # fmt: skip
#: The numbers behind names, by the index of the field.
_NUMBERS = {3: {name: n for n, name in enumerate(_MONTHS, 1)}, 4: {name: n for n, name in enumerate(_DAYS)}}  # fmt: skip
_ALL_DAYS = frozenset(range(1, 32))
#: What each field ranges over.
_WHOLE = ("0-59", "0-23", "1-31", "1-12", "0-6")
_RANGE = re.compile(r"(\w+)-(\w+)", re.ASCII)
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True)
class When:
    """The occurrences of a schedule; made by `cron` or `every`."""

    def after(self, occurrence_ms: int) -> int | None:
        """Return the first occurrence after another, epoch ms; None: there is none.

        Raises:
            InvalidSchedule: this machine does not know the zone.
        """
        raise NotImplementedError

    def occurrences(self, after_ms: int) -> Iterator[int]:
        """Yield the occurrences after another."""
        occurrence: int | None = after_ms
        while (
            occurrence is not None
            and (occurrence := self.after(occurrence)) is not None
        ):
            yield occurrence

    def next(self, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """Return the next occurrences, by default from now on, in the time zone of the schedule.

        Raises:
            InvalidSchedule: this machine does not know the zone.
        """
        after = datetime.now(UTC) if after is None else after
        found = islice(self.occurrences(ms_of(after)), count)
        return [datetime_of(occurrence, self.zone) for occurrence in found]

    @property
    def zone(self) -> tzinfo:
        """The zone in which its occurrences are shown."""
        return _zone(settings.TIME_ZONE)

    def as_json(self) -> dict[str, Any]:
        """Return what `when_of` reads."""
        raise NotImplementedError

    def check(self) -> None:
        """Make sure that it has occurrences.

        Raises:
            InvalidSchedule: it has none, or this machine does not know its zone.
        """

    @property
    def words(self) -> str:
        """What it means, in words: a `Wording` if they can be said in another language."""
        raise NotImplementedError

    @property
    def short(self) -> str:
        """Its meaning in any language."""
        return str(self)


@dataclass(frozen=True)
class Cron(When):
    """Occurrences by a cron expression; see `cron`."""

    expression: str
    #: Name of the time zone; None: the project's TIME_ZONE.
    tz: str | None = None

    def __str__(self) -> str:
        return f"cron({self.expression!r}, tz={self.zone_name!r})"

    @property
    def zone_name(self) -> str:
        return self.tz or settings.TIME_ZONE

    @property
    def zone(self) -> tzinfo:
        return _zone(self.zone_name)

    @property
    def short(self) -> str:
        return f"{self.expression} ({self.zone_name})"

    def after(self, occurrence_ms: int) -> int | None:
        try:
            before = datetime_of(occurrence_ms, self.zone)
            if self._goes_on:
                after_ms = self._after_going_on(occurrence_ms, before)
            else:
                # On the day on which clocks are set back, a wall time comes twice, and only its first counts.
                found = map(ms_of, CronSim(self.expression, before))
                after_ms = next((each for each in found if each > occurrence_ms), None)
        except (CronSimError, OverflowError, StopIteration):
            # The 31st of February; or beyond the year 9999.
            return None
        return None if after_ms is None or after_ms >= _LAST_MS else after_ms

    @property
    def _goes_on(self) -> bool:
        """Whether it goes on in both hours where clocks are set back: Debian's cron knows such by a star."""
        minute, hour, *_ = self.expression.split(" ")
        return minute.startswith("*") or hour.startswith("*")

    def _after_going_on(self, occurrence_ms: int, before: datetime) -> int | None:
        # CronSim leaves out occurrences in the hour of a change by half an hour, or at a quarter to. So it reckons without
        # any change, and near one we look at each minute.
        offset, zone = before.utcoffset(), self.zone
        assert offset is not None
        sim = CronSim(self.expression, before.astimezone(timezone(offset)))
        found, now = next(sim).astimezone(UTC), before.astimezone(UTC)
        for look in (now, max(now, found - _NEAR)):
            end = min(look + _NEAR, found)
            if all(at.astimezone(zone).utcoffset() == offset for at in (look, end)):
                continue
            look = look.replace(second=0, microsecond=0)
            for _ in range(2 * _NEAR // _MINUTE):
                look += _MINUTE
                if _is_occurrence(sim, look.astimezone(zone)):
                    return ms_of(look)
            return self.after(ms_of(look))
        return ms_of(found)

    def check(self) -> None:
        _ = self.zone
        if self.after(ms_of(datetime.now(UTC))) is None:
            raise InvalidSchedule(
                f"{self} never comes: no such day is in the next 50 years"
            )

    def as_json(self) -> dict[str, Any]:
        return {"cron": self.expression, "tz": self.zone_name}

    @property
    def words(self) -> str:
        try:
            sim = CronSim(self.expression, _ANY_TIME)
        except CronSimError:
            return "never"
        minute, hour, day, month, weekday = self.expression.split(" ")
        is_any_weekday = _is_any_weekday(sim)
        if not sim.day_and and (sim.days >= _ALL_DAYS or is_any_weekday):
            # One of the two is enough, and one is any day.
            day = weekday = "*"
        elif is_any_weekday:
            weekday = "*"
        text = CronSim(f"{minute} {hour} {day} {month} {weekday}", _ANY_TIME).explain()
        # Of a day of the month and one of the week, one is enough, where cronsim's words ask for both.
        text = text.replace(" and on ", " or on ")
        return f"{text} ({self.zone_name})"


@dataclass(frozen=True)
class Every(When):
    """Occurrences by an interval, counted from the epoch; see `every`."""

    interval_ms: int

    def __str__(self) -> str:
        return f"every({timedelta(milliseconds=self.interval_ms)!r})"

    def after(self, occurrence_ms: int) -> int | None:
        after_ms = (occurrence_ms // self.interval_ms + 1) * self.interval_ms
        return after_ms if after_ms < _LAST_MS else None

    def as_json(self) -> dict[str, Any]:
        return {"every": self.interval_ms}

    @property
    def words(self) -> str:
        return _every(self.interval_ms)


def _is_any_weekday(sim: CronSim) -> bool:
    return {day % 7 for day in sim.weekdays if isinstance(day, int)} == set(range(7))


def _is_occurrence(sim: CronSim, wall: datetime) -> bool:
    return (
        wall.minute in sim.minutes
        and wall.hour in sim.hours
        and wall.month in sim.months
        and sim.match_day(wall.date())
    )


def cron(expression: str, *, tz: str | tzinfo | None = None) -> Cron:
    """Return the occurrences of a cron expression of five fields, by the clock of a time zone.

    The fields are minute, hour, day of the month, month and day of the week, as Debian's cron reads them; names of
    months and days, ``L`` for the last day, and ``2#1`` for the first Tuesday work as well. ``@daily`` and its like
    stand for an expression. Without ``tz`` the project's ``TIME_ZONE`` counts.

    Where a clock is set forward, an occurrence that it skips comes right after the gap. Where it is set back, an occurrence that
    comes twice counts once; but with ``*`` as its hour or minute, an expression continues through both hours.

    Example::

        cron("0 9 * * 1-5", tz="Europe/Berlin")  # at nine on working days
        cron("@daily")

    Raises:
        InvalidSchedule: the expression is not valid. ``manage.py check`` reports one that never occurs, and a time zone that
            this machine does not know.
    """
    if not isinstance(expression, str):
        raise InvalidSchedule(
            f"cron() takes text such as '0 9 * * 1-5'; got {show(expression)}"
        )
    text = " ".join(expression.split())
    text = _MACROS.get(text.lower(), text)
    if len(text) > MAX_EXPRESSION:
        raise InvalidSchedule(
            f"a cron expression of {len(text):,} characters is too long; {MAX_EXPRESSION} are the most"
        )
    return Cron(_read(text, expression), _zone_name(tz))


def _read(text: str, expression: str) -> str:
    """Return an expression whose occurrences and words are read alike.

    cronsim has two parsers. They differ about the step of a single value.

    Raises:
        InvalidSchedule: it is no such expression.
    """
    fields = text.split(" ")
    if len(fields) == 6:
        raise InvalidSchedule(
            f"cron({show(expression)}) has six fields, and five are read: minute, hour, day, month, weekday. Cron has no"
            " seconds; every(timedelta(seconds=…)) has"
        )
    if text.startswith("@"):
        raise InvalidSchedule(
            f"cron({show(expression)}) is not known."
            + (suggestion(text, _MACROS) or f" Known are {', '.join(_MACROS)}.")
        )
    if len(fields) != 5:
        raise InvalidSchedule(
            f"cron({show(expression)}) has {_counted(len(fields) if text else 0)}; give five: minute, hour, day of the month,"
            " month, day of the week, such as '0 9 * * 1-5'"
        )
    if not text.isascii():
        raise InvalidSchedule(f"cron({show(expression)}) has characters beyond ASCII")
    fields = [
        ",".join([_read_term(number, term, expression) for term in field.split(",")])
        for number, field in enumerate(fields)
    ]
    text = " ".join(fields)
    try:
        CronSim(text, _ANY_TIME)
    except CronSimError as error:
        # The 31st of February is well written and never comes; `check` tells.
        if not _can_be_read(fields):
            raise InvalidSchedule(
                f"cron({show(expression)}) cannot be read: {error}; the fields are minute, hour, day of the month, month,"
                " day of the week"
            ) from None
    return text


def _read_term(number: int, term: str, expression: str) -> str:
    values, slash, step = term.partition("/")
    if (ends := _RANGE.fullmatch(values.upper())) is not None:
        first, last = (_number(number, end) for end in ends.groups())
        has_step = step.isdigit() and int(step) > 0
        if first == last and has_step:
            # As cron reads it: the range has one value, whatever the step.
            return ends[1]
        if number == 4 and 0 <= last < first <= 7 and (has_step or not slash):
            days = [_DAYS[day % 7] for day in range(first, last + 8)]
            days = days[:: int(step) if slash else 1]
            instead = "*" if len(days) == 7 else ",".join(days)
            raise InvalidSchedule(
                f"cron({show(expression)}): {term} ends before it begins, as the week begins with Sunday; write {instead}"
            )
    elif slash and values != "*":
        low, high = map(int, _WHOLE[number].split("-"))
        first = _number(number, values.upper())
        if not low <= first <= high:
            first = low
        raise InvalidSchedule(
            f"cron({show(expression)}): {term} has a step and no range; write {first}-{high}/{step}, or */{step} to begin"
            f" with {low}"
        )
    return term


def _counted(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"


def _number(number: int, text: str) -> int:
    """Return the number that a text stands for in a field; -1: none."""
    if text.isdigit():
        return int(text)
    return _NUMBERS.get(number, {}).get(text, -1)


def _can_be_read(fields: list[str]) -> bool:
    for number, field in enumerate(fields):
        alone = ["*"] * 5
        alone[number] = field
        try:
            CronSim(" ".join(alone), _ANY_TIME)
        except CronSimError:
            return False
    return True


def _zone_name(tz: object) -> str | None:
    if tz is None or (isinstance(tz, str) and tz):
        return tz
    if isinstance(tz, ZoneInfo) and tz.key:
        return tz.key
    if tz is UTC:
        return "UTC"
    raise InvalidSchedule(
        f"tz={show(tz)}: give the name of a time zone, such as 'Europe/Berlin', or a ZoneInfo that has one"
    )


@lru_cache(maxsize=256)
def _known_zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _zone(name: str) -> ZoneInfo:
    try:
        return _known_zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidSchedule(
            f"this machine does not have time zone {show(name)}; correct its name, or install the package tzdata"
        ) from None


def every(interval: timedelta | float) -> Every:
    """Return the occurrences of an interval: a timedelta, or a number of seconds. The first was at the epoch, 1970 in UTC.

    So ``every(timedelta(minutes=5))`` comes at :00, :05, :10, and restarts shift nothing.

    Example::

        every(timedelta(minutes=5))

    Raises:
        InvalidSchedule: the interval is shorter than a second, or not a whole number of milliseconds.
    """
    if isinstance(interval, bool) or not isinstance(interval, int | float | timedelta):
        raise InvalidSchedule(
            f"every() takes a timedelta, or a number of seconds; got {show(interval)}, of type {type(interval).__name__}"
        )
    try:
        span = (
            interval if isinstance(interval, timedelta) else timedelta(seconds=interval)
        )
    except (OverflowError, ValueError):
        raise InvalidSchedule(
            f"every({show(interval)}) is not a length of time"
        ) from None
    if not SHORTEST <= span <= LONGEST:
        raise InvalidSchedule(
            f"every({show(interval)}): an interval is at least a second and at most 100 years"
        )
    if span % timedelta(milliseconds=1):
        raise InvalidSchedule(
            f"every({show(interval)}): an interval is a whole number of milliseconds"
        )
    return Every(span // timedelta(milliseconds=1))


def when_of(body: object) -> When:
    """Return what `When.as_json` has written.

    Raises:
        InvalidSchedule: we have not written it.
    """
    match body:
        case {"cron": str(expression), "tz": str(tz)}:
            return cron(expression, tz=tz)
        case {"every": int(interval_ms)} if interval_ms > 0:
            return Every(interval_ms)
    raise InvalidSchedule(f"{show(body)} has neither a cron expression nor an interval")


def ms_of(time: datetime) -> int:
    """Return epoch ms, rounded down."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def in_zone(time: datetime) -> datetime:
    """Return a time in the current time zone; in UTC where that zone is beyond the end of Python's calendar."""
    if timezones.is_naive(time):
        return timezones.make_aware(time)
    try:
        return timezones.localtime(time)
    except OverflowError:
        return time.astimezone(UTC)


def datetime_of(time_ms: int, zone: tzinfo = UTC) -> datetime:
    """Return a time in a time zone.

    Raises:
        OverflowError: it is beyond the year 9999.
    """
    return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(zone)


#: Each unit in ms, an interval of one, and so many of them.
_UNITS: tuple[tuple[int, Wording, Callable[[int], Wording]], ...] = (
    (86_400_000, gettext("Every day"), lambda n: ngettext("{number} day", "{number} days", n)),
    (3_600_000, gettext("Every hour"), lambda n: ngettext("{number} hour", "{number} hours", n)),
    (60_000, gettext("Every minute"), lambda n: ngettext("{number} minute", "{number} minutes", n)),
    (1_000, gettext("Every second"), lambda n: ngettext("{number} second", "{number} seconds", n)),
    (1, gettext("Every millisecond"), lambda n: ngettext("{number} millisecond", "{number} milliseconds", n)),
)  # fmt: skip


def _every(span_ms: int) -> Wording:
    """Put an interval into words."""
    parts: list[Wording] = []
    for unit_ms, one, many in _UNITS:
        if span_ms == unit_ms and not parts:
            return one
        count, span_ms = divmod(span_ms, unit_ms)
        if count:
            parts.append(many(count))
    time, *others = parts
    for part in others:
        time = gettext("{others}, {next}", others=time, next=part)
    return gettext("Every {time}", time=time)
