"""Statistics of a queue: how its jobs ended, how late they began and how long they took, by task.

Each process counts for itself and adds that now and then. What is stored is a fixed number of keys a queue:

* ``minute`` and ``hour``, the ones that are open: ``moment``, and ``task:`` and the name → figures, without a name those
  of the queue in whole;
* ``minutes`` and ``hours``, those that are over: the moment → figures of the queue in whole; the moment and ``:tasks`` →
  those of its tasks, packed. In hours, `pack_hour` then makes all of them smaller, and adds them to ``day:`` and a number,
  one for each of the last `DAYS_KEPT` days: what the tasks have in those hours of the day that are over;
* ``totals``, of all times, which never fall.

A moment is a number of minutes or hours since the epoch, by the server's clock. Figures are a MessagePack array of code, number,
code, number, in the order of the codes. The script that adds them knows no code, and readers leave out those that they do
not know, so a later version may have more. Values that we did not write are ignored.
"""

import math
import struct
import zlib
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec

from django_delayq.calls.call import Call
from django_delayq.calls.command import Command, fields_of
from django_delayq.decoding import Decoder, Number
from django_delayq.delivery.binding import bind
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.exceptions import DecodeError

#: Tasks of one `add_figures` call: a ms of the server's time.
FIGURES_BATCH = 20
#: The name that stands for all tasks beyond those that a queue has figures of.
OTHER = "other"
#: The name that stands for jobs whose task cannot be read.
UNKNOWN = "?"
#: The most tasks that a queue may keep figures of by their names.
MOST_TASKS = 5_000
#: Characters of the name of a task that are kept.
NAME_LIMIT = 200
#: Moments of one call that reads the figures of tasks.
TASKS_BATCH = 60
#: Buckets an octave, and the last bucket: 12 days.
OCTAVE = 4
LAST_BUCKET = 40 * OCTAVE - 1
#: Hours of a day.
DAY = 24
#: Days whose hours are kept together as well: the present one, and those of a week before it.
DAYS_KEPT = 8
#: The most bytes that one moment's tasks may have once they are unpacked.
MOST_BYTES = 1 << 24


class Unit(StrEnum):
    """The period of one point of a series."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        return 60 if self is Unit.MINUTE else 3_600

    @property
    def kept(self) -> int:
        """How many are kept, beside the present one: those of 8 hours, or of 90 days."""
        return 480 if self is Unit.MINUTE else 2_160


class Outcome(StrEnum):
    """How an attempt ended, in the words of the log."""

    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    SNOOZED = "snoozed"
    HELD = "held"
    GIVEN_BACK = "given_back"


#: The codes of numbers that are no buckets. They stay as they are for ever.
_CODES = {outcome: -1 - n for n, outcome in enumerate(Outcome)}
_LATE_US, _TOOK_US = -31, -32
_LEAST_CODE = _TOOK_US
#: One more than the code of the last bucket, and places for the numbers of all codes.
_BUCKETS = 2 * (LAST_BUCKET + 1)
_PLACES = _BUCKETS - _LEAST_CODE


def bucket_of(us: float) -> int:
    """Return the bucket of a time: four an octave, from 1 us on; less is in the first one."""
    if us < 1:
        return 0
    fraction, exponent = math.frexp(us)
    return min(
        OCTAVE * (exponent - 1) + int(fraction * 2 * OCTAVE) - OCTAVE, LAST_BUCKET
    )


def bounds_us(bucket: int) -> tuple[float, float]:
    """Return where a bucket begins and ends: its end is at most 25 % more than its beginning, except for the first."""
    octave, part = divmod(bucket, OCTAVE)
    least = 2.0**octave * (1 + part / OCTAVE)
    return (0.0 if bucket == 0 else least), least + 2.0**octave / OCTAVE


class Histogram(msgspec.Struct):
    """Times, counted in logarithmic buckets.

    Example::

        figures = queue_statistics(["mail"])["mail"].total
        print(figures.lateness.percentile(99), "ms")
    """

    #: Number of times in each bucket.
    buckets: Counter[int] = msgspec.field(default_factory=Counter)
    #: Sum of all times, us.
    sum_us: int = 0

    @property
    def count(self) -> int:
        return self.buckets.total()

    @property
    def mean_ms(self) -> float | None:
        """The mean in ms; None if there are no times."""
        return self.sum_us / self.count / 1_000 if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Return the time in ms that ``percent`` of all times do not exceed; None if there are no times."""
        count = self.count
        if not count:
            return None
        rank = max(1.0, math.ceil(percent / 100 * count))
        for bucket in sorted(self.buckets):
            here = self.buckets[bucket]
            if rank <= here:
                least, most = bounds_us(bucket)
                return (least + (most - least) * (rank - 0.5) / here) / 1_000
            rank -= here
        raise AssertionError("the count is the sum of all buckets")

    def folded(self, bounds_ms: Sequence[float]) -> list[int]:
        """Return the number of times up to each bound, as Prometheus counts its buckets.

        A bucket is counted by its middle, so a bound inside a bucket is off by up to half of it.
        """
        ends = sorted(bounds_ms)
        found = [0] * len(ends)
        for bucket, number in self.buckets.items():
            middle_ms = sum(bounds_us(bucket)) / 2_000
            for n, end_ms in enumerate(ends):
                if middle_ms <= end_ms:
                    found[n] += number
        return found

    def add(self, other: "Histogram") -> None:
        self.buckets.update(other.buckets)
        self.sum_us += other.sum_us


class Figures(msgspec.Struct):
    """What was counted: of a queue or a task, in some time.

    Example::

        figures = queue_statistics(["mail"])["mail"].total
        print(figures.runs, figures.failures, figures.duration.mean_ms)
    """

    #: Number of attempts by outcome.
    outcomes: Counter[Outcome] = msgspec.field(default_factory=Counter)
    #: Time from when an attempt could start until it started; see `Leased.held_ms`.
    lateness: Histogram = msgspec.field(default_factory=Histogram)
    #: Duration of attempts that ran.
    duration: Histogram = msgspec.field(default_factory=Histogram)

    @property
    def runs(self) -> int:
        """Attempts that ran to their end."""
        return self.duration.count

    @property
    def failures(self) -> int:
        """Attempts that failed."""
        return self.outcomes[Outcome.RETRYING] + self.outcomes[Outcome.DEAD]

    def add(self, other: "Figures") -> None:
        self.outcomes.update(other.outcomes)
        self.lateness.add(other.lateness)
        self.duration.add(other.duration)

    def __bool__(self) -> bool:
        return bool(self.outcomes)

    def encode(self) -> bytes:
        """Return the figures as they are stored."""
        codes = {_CODES[outcome]: n for outcome, n in self.outcomes.items()}
        codes |= {_LATE_US: self.lateness.sum_us, _TOOK_US: self.duration.sum_us}
        codes |= {2 * bucket: n for bucket, n in self.lateness.buckets.items()}
        codes |= {2 * bucket + 1: n for bucket, n in self.duration.buckets.items()}
        return _encode(
            [part for item in sorted(codes.items()) if item[1] for part in item]
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = Decoder[list[int]](list[Number], form=msgspec.msgpack).decode
#: What it raises to read what nobody of us has written, or to sum up its numbers.
_UNREADABLE = (DecodeError, OverflowError, IndexError)
#: What figures begin with that `_shortened` wrote; others begin as a MessagePack array does.
_SHORTENED = b"\2"
#: The numbers of up to four binary digits.
_ROUND = (*range(16), *(n << shift for shift in range(1, 50) for n in range(8, 16)))
_INDEXES = {number: index for index, number in enumerate(_ROUND)}


def total(parts: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    found = Figures()
    for part in parts:
        found.add(part)
    return found


def _codes_and_numbers(stored: bytes) -> tuple[list[int], list[int]]:
    found = _decode(stored.removeprefix(_SHORTENED))
    if not stored.startswith(_SHORTENED):
        return found[::2], found[1::2]
    half = len(found) // 2
    numbers = [-index if index < 0 else _ROUND[index] for index in found[half:]]
    return list(accumulate(found[:half])), numbers


def decode_figures(stored: bytes) -> Figures:
    """Return stored figures. Values that we did not write are left out."""
    numbers = [0] * _PLACES
    _add(numbers, stored)
    return _figures(numbers)


def sum_up(stored: Iterable[tuple[str, bytes]]) -> dict[str, Figures]:
    """Return by name the sum of stored figures. Values that we did not write are left out."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _PLACES)
    for name, text in stored:
        _add(sums[name], text)
    return {name: _figures(numbers) for name, numbers in sums.items()}


def _add(sums: list[int], stored: bytes) -> None:
    """Add stored figures to the numbers of all codes: those below 0 come last."""
    if not stored:
        return
    try:
        codes, numbers = _codes_and_numbers(stored)
    except _UNREADABLE:
        return
    if (
        min(codes, default=0) < _LEAST_CODE
        or max(codes, default=0) >= _BUCKETS
        or min(numbers, default=0) < 0
    ):
        known = [
            (code, number)
            for code, number in zip(codes, numbers, strict=False)
            if _LEAST_CODE <= code < _BUCKETS and number >= 0
        ]
        codes, numbers = [code for code, _ in known], [number for _, number in known]
    # A page of tasks does this for ten thousands of numbers.
    for code, number in zip(codes, numbers, strict=False):
        sums[code] += number


def _figures(numbers: list[int]) -> Figures:
    lateness, duration = (
        Counter(
            {n: number for n, number in enumerate(numbers[kind:_BUCKETS:2]) if number}
        )
        for kind in range(2)
    )
    return Figures(
        Counter(
            {
                outcome: numbers[code]
                for outcome, code in _CODES.items()
                if numbers[code]
            }
        ),
        Histogram(lateness, numbers[_LATE_US]),
        Histogram(duration, numbers[_TOOK_US]),
    )


# Writing.


class Packed(NamedTuple):
    """An hour that is over, as it is stored."""

    hour: int
    #: What it has of the queue in whole.
    whole: bytes
    tasks: bytes
    #: What was stored of its day.
    day: bytes = b""


def add_figures(
    keys: DeliveryKeys, counted: Mapping[str, Figures], *, most_tasks: int
) -> Call[Packed | None]:
    """Add what was counted of up to `FIGURES_BATCH` tasks; an empty name stands for the queue in whole.

    The reply has the hour that is over, if this call is the first after it: `pack_hour` makes it smaller. A lost reply
    is an error: a repeat would count everything twice.
    """
    return bind("add_figures", keys)(
        lambda reply: Packed(*reply) if reply else None,
        most=most_tasks,
        rest=OTHER,
        days_kept=DAYS_KEPT,
        tasks=[
            (name[:NAME_LIMIT], figures.encode()) for name, figures in counted.items()
        ],
        repeat=None,
    )


def pack_hour(keys: DeliveryKeys, packed: Packed) -> Call[bool]:
    """Store an hour smaller, and add it to its day.

    The hour is compressed, and without the last digits of the number of each bucket. The day stays as it is if somebody
    has changed it since; it says which hours it has, and who reads it reads the others one by one.
    """
    tasks = b"".join(
        _entry(name, _shortened(figures))
        for name, figures in _entries(packed.tasks[1:])
    )
    zipped = _ZIPPED + zlib.compress(tasks, 9)
    return bind("pack_hour", keys)(
        bool,
        hour=packed.hour,
        whole=_shortened(packed.whole),
        tasks=zipped,
        day_field=_day_field(packed.hour // DAY),
        day_head=packed.day[: _DAY_HEAD.size],
        day=_with_hour(packed),
    )


def _day_field(day: int) -> str:
    # Days take turns, so there are so many, however long a queue is idle.
    return f"day:{day % DAYS_KEPT}"


def _with_hour(packed: Packed) -> bytes:
    """Return what is to be stored of the day of an hour.

    Shape: the day since the epoch, a bit for each hour that is in it, and its tasks as those of an hour, not rounded: to
    round a sum each time that something is added would lose what is small.
    """
    day, hour = divmod(packed.hour, DAY)
    # Whatever somebody else has written for the hour.
    day &= 0xFFFFFFFF
    tasks = {}
    known, hours = _read_head(packed.day)
    if known == day:
        tasks = dict(_entries(_unpacked(packed.day[_DAY_HEAD.size :])))
    else:
        hours = 0
    for name, figures in _entries(packed.tasks[1:]):
        tasks[name] = _sum(tasks[name], figures) if name in tasks else figures
    text = b"".join(_entry(name, figures) for name, figures in tasks.items())
    return _DAY_HEAD.pack(day, hours | 1 << hour) + _ZIPPED + zlib.compress(text, 3)


def _read_head(stored: bytes) -> tuple[int, int]:
    """Return the day of which something is stored, and the bits of the hours that are in it."""
    if len(stored) < _DAY_HEAD.size:
        return -1, 0
    day, hours = _DAY_HEAD.unpack_from(stored)
    return day, hours


def _sum(one: bytes, other: bytes) -> bytes:
    """Return the sum of figures as they are stored, with the codes that only a later version knows."""
    try:
        codes = dict(zip(*_codes_and_numbers(one), strict=False))
        for code, number in zip(*_codes_and_numbers(other), strict=False):
            codes[code] = codes.get(code, 0) + number
        return _encode([part for item in sorted(codes.items()) for part in item])
    except _UNREADABLE:
        return b""


def _shortened(stored: bytes) -> bytes:
    """Return figures in fewer bytes.

    Shape: `_SHORTENED`, then a MessagePack array of the codes, each as its step from the last one, and of their numbers,
    each as its index in `_ROUND`, or negative. Buckets of lateness and duration are apart: their neighbours differ by
    little. The number of a bucket is rounded, by a seventh at most; the sum of a histogram's numbers stays.
    """
    try:
        pairs = zip(*_codes_and_numbers(stored), strict=False)
        found = {code: number for code, number in pairs if number > 0}
        for kind in range(2):
            buckets = [code for code in found if code >= 0 and code % 2 == kind]
            buckets.sort(key=found.__getitem__)
            # From the least to the fullest: each takes what rounding took from the one before, and the fullest is not rounded.
            # So no slow job that is alone gets company.
            for bucket, fuller in pairwise(buckets):
                rounded = _ROUND[bisect(_ROUND, found[bucket]) - 1]
                found[fuller] += found[bucket] - rounded
                found[bucket] = rounded
        codes = sorted(found, key=lambda code: (code >= 0 and 1 + code % 2, code))
        steps = [code - last for last, code in pairwise([0, *codes])]
        numbers = [_INDEXES.get(found[code], -found[code]) for code in codes]
        return _SHORTENED + _encode(steps + numbers)
    except _UNREADABLE:
        return b""


# Reading.


class Read(NamedTuple):
    """The figures of some minutes or hours."""

    #: The present minute or hour.
    now: int
    #: Of each, by minute or hour since the epoch: as it is stored; only those that have something.
    stored: dict[int, bytes]
    #: The one that is open, and what it has of each task, or of the queue under an empty name.
    moment: int
    open: dict[bytes, bytes]


def read_figures(
    keys: DeliveryKeys,
    unit: Unit,
    *,
    first: int = 0,
    count: int,
    of_tasks: bool = False,
) -> Call[Read]:
    """Read up to ``count`` minutes or hours, the ``first`` last ones left out; 0 begins with the present one.

    ``of_tasks``: of each task instead of the queue in whole; then up to `TASKS_BATCH` of them.
    """
    count = min(count, TASKS_BATCH if of_tasks else unit.kept + 1)

    def read(reply: Any) -> Read:
        now, moment, there, stored = reply
        return Read(
            now,
            {now - first - n: text for n, text in enumerate(stored) if text},
            moment,
            _open_tasks(there),
        )

    return bind("read_figures", keys)(
        read, unit=unit, first=first, count=count, of_tasks=int(of_tasks)
    )


def _open_tasks(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    return {
        field[5:]: text
        for field, text in zip(fields[::2], fields[1::2], strict=True)
        if field[:5] == b"task:" and text
    }


class ReadDays(NamedTuple):
    """The figures of the tasks of the last days."""

    #: The hour that is open, and what it has of each task.
    moment: int
    open: dict[bytes, bytes]
    #: The tasks of each day of which something is stored, packed.
    days: dict[int, bytes]
    #: The hours that are in none of these, and may be stored by themselves.
    missing: list[int]


def read_days(keys: DeliveryKeys, *, count: int) -> Call[ReadDays]:
    """Read the tasks of up to `DAYS_KEPT` days, the present one included; those of hours are left to `read_hours`."""
    count = min(count, DAYS_KEPT)

    def read(reply: Any) -> ReadDays:
        now, moment, there, stored = reply
        today = now // DAY
        first = today - count + 1
        days, hours = {}, {moment}
        for text in stored:
            day, bits = _read_head(text)
            if first <= day <= today:
                days[day] = text[_DAY_HEAD.size :]
                hours |= {day * DAY + n for n in range(DAY) if bits >> n & 1}
        return ReadDays(
            moment,
            _open_tasks(there) if moment >= first * DAY else {},
            days,
            [hour for hour in range(first * DAY, now + 1) if hour not in hours],
        )

    return bind("read_days", keys)(read, days_kept=DAYS_KEPT)


def read_hours(keys: DeliveryKeys, hours: Sequence[int]) -> Command[list[bytes]]:
    """Read the tasks of up to `TASKS_BATCH` hours that are over, packed, without those of which nothing is stored."""
    fields = (f"{hour}:tasks" for hour in hours[:TASKS_BATCH])
    return Command(
        ("HMGET", keys.hours, *fields), lambda reply: list(filter(None, reply))
    )


def read_totals(keys: DeliveryKeys) -> Command[dict[str, Figures]]:
    """Read the figures of all times: of each task, and under an empty name of the queue in whole."""

    def read(reply: Any) -> dict[str, Figures]:
        return {
            _name(field[5:]): decode_figures(text)
            for field, text in fields_of(reply).items()
            if field[:5] == b"task:"
        }

    return Command(("HGETALL", keys.totals), read)


_PLAIN, _ZIPPED = b"\0", b"\2"
_HEAD = struct.Struct(">HH")
#: Before the tasks of a day: the day, and the bits of its hours.
_DAY_HEAD = struct.Struct(">II")


def unpack_tasks(stored: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each task of a minute, an hour or a day that is over, and its figures as they are stored."""
    for name, figures in _entries(_unpacked(stored)):
        yield _name(name), figures


def _unpacked(stored: bytes) -> bytes:
    kind, text = stored[:1], stored[1:]
    if kind == _PLAIN:
        return text
    try:
        return (
            zlib.decompressobj().decompress(text, MOST_BYTES)
            if kind == _ZIPPED
            else b""
        )
    except zlib.error:
        return b""


def _entry(name: bytes, figures: bytes) -> bytes:
    return _HEAD.pack(len(name), len(figures)) + name + figures


def _entries(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + _HEAD.size <= len(text):
        size, length = _HEAD.unpack_from(text, at)
        at += _HEAD.size + size
        yield text[at - size : at], text[at : at + length]
        at += length


def _name(stored: bytes) -> str:
    return stored.decode(errors="replace")


def tasks_in(read: Read) -> Iterator[tuple[int, str, bytes]]:
    """Yield what was read of tasks: the minute or hour, the name, figures as they are stored."""
    for moment, stored in read.stored.items():
        for name, text in unpack_tasks(stored):
            yield moment, name, text
    for name, text in open_tasks(read):
        yield read.moment, name, text


def open_tasks(read: Read | ReadDays) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each task of the minute or hour that is open, and its figures as they are stored."""
    for field, text in read.open.items():
        if field:
            yield _name(field), text
