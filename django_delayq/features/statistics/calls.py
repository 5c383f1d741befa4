"""Statistics of a queue: how its jobs ended, how late they began and how long they took, by task.

Each process counts for itself and adds that now and then. What is stored is a fixed number of keys a queue:

* ``minute`` and ``hour``, the ones that are open: ``moment``, and ``task:`` and the name → figures, without a name those
  of the queue in whole;
* ``minutes`` and ``hours``, those that are over, in slots that take turns: the slot → figures of the queue in whole; the
  slot and ``:tasks`` → those of its tasks;
* ``totals``, of all times, which never fall. In ``hours``, ``day:`` and a slot is what tasks had in them before the first
  figures of a day. So what tasks have of the last days is a difference; ``day`` is the last of these days.

A moment is a number of minutes, hours or days since the epoch, by the server's clock. The value of a slot begins with its
moment, so readers recognize one that is too old, or of a clock that was wrong.

Figures are a MessagePack array of three: the numbers of outcomes; and of lateness and duration the sum, then the number
of each bucket. The script that adds them knows only arrays, and readers leave out what they do not know, so a later version
may have more. Values that we did not write are ignored.
"""

import math
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import Decoder
from django_delayq.exceptions import DecodeError
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command, fields_of

#: Tasks of one `add_figures` call: a ms of the server's time.
FIGURES_BATCH = 20
#: The name that stands for all tasks beyond those that a queue has figures of.
OTHER = "other"
#: The name that stands for jobs whose task cannot be read.
UNKNOWN = "?"
#: Characters of the name of a task that are kept.
NAME_LIMIT = 200
#: Moments of one call that reads the figures of tasks.
TASKS_BATCH = 60
#: Buckets an octave, and the last bucket: 12 days.
OCTAVE = 4
LAST_BUCKET = 40 * OCTAVE - 1
#: Days of which tasks have figures: the present one, and those of a week before it.
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
    def slots(self) -> int:
        """How many are kept: the present one, and those of 8 hours or of 90 days before it."""
        return 481 if self is Unit.MINUTE else 2_161


class Outcome(StrEnum):
    """How an attempt ended, in the words of the log. Figures are stored in this order, so new ones come last."""

    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    SNOOZED = "snoozed"
    HELD = "held"
    GIVEN_BACK = "given_back"


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
        outcomes = [self.outcomes[outcome] for outcome in Outcome]
        return _encode([outcomes, *map(_numbers_of, (self.lateness, self.duration))])


K = TypeVar("K")
#: The numbers of figures, as they are stored.
_Numbers = Sequence[Sequence[int]]
#: A number that is stored. The sums of busy years are above 2**53.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_encode = msgspec.msgpack.Encoder().encode
_decode = Decoder[list[list[int]]](list[list[_Count]], form=msgspec.msgpack).decode


def _numbers_of(histogram: Histogram) -> list[int]:
    buckets = range(max(histogram.buckets, default=-1) + 1)
    return [histogram.sum_us, *(histogram.buckets[bucket] for bucket in buckets)]


def total(parts: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    found = Figures()
    for part in parts:
        found.add(part)
    return found


def sum_up(stored: Iterable[tuple[K, bytes]]) -> dict[K, Figures]:
    """Return by key the sum of stored figures. Values that we did not write are left out."""
    numbers: defaultdict[K, list[_Numbers]] = defaultdict(list)
    for key, text in stored:
        numbers[key].append(_read(text))
    return {
        # A page of tasks does this for ten thousands of numbers.
        key: _figures(
            [list(map(sum, _in_columns(*part))) for part in zip(*its, strict=True)]
        )
        for key, its in numbers.items()
    }


def _in_columns(*rows: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return zip_longest(*rows, fillvalue=0)


def _read(stored: bytes) -> _Numbers:
    try:
        found = _decode(stored)
    except DecodeError:
        found = []
    return (*found, (), (), ())[:3]


def _figures(numbers: _Numbers) -> Figures:
    outcomes, lateness, duration = numbers
    return Figures(
        Counter(
            {outcome: n for outcome, n in zip(Outcome, outcomes, strict=False) if n}
        ),
        _histogram(lateness),
        _histogram(duration),
    )


def _histogram(numbers: Sequence[int]) -> Histogram:
    buckets = enumerate(numbers[1 : LAST_BUCKET + 2])
    return Histogram(
        Counter({bucket: n for bucket, n in buckets if n}), numbers[0] if numbers else 0
    )


# Writing.


class Closed(NamedTuple):
    """The stored figures of tasks in a minute or an hour that is over, or of all times before a day."""

    unit: Unit
    field: str
    tasks: bytes


def add_figures(
    keys: DeliveryKeys,
    counted: Mapping[str, Figures],
    *,
    most_tasks: int,
) -> Call[list[Closed]]:
    """Add what was counted of up to `FIGURES_BATCH` tasks; an empty name stands for the queue in whole.

    The reply has what this call, as the first after it, has found over: `pack_figures` makes it smaller. A lost reply is an
    error: a repeat would count everything twice.
    """
    return bind("add_figures", keys)(
        lambda reply: [
            Closed(Unit(unit.decode()), field.decode(), tasks)
            for unit, field, tasks in reply
        ],
        most=most_tasks,
        rest=OTHER,
        minute_slots=Unit.MINUTE.slots,
        hour_slots=Unit.HOUR.slots,
        days_kept=DAYS_KEPT,
        tasks=[
            (name[:NAME_LIMIT], figures.encode()) for name, figures in counted.items()
        ],
        repeat=None,
    )


def pack_figures(keys: DeliveryKeys, closed: Closed) -> Call[bool]:
    """Store the figures of a slot in fewer bytes; return False if they have changed meanwhile."""
    moment = closed.tasks[: _MOMENT.size]
    # Other levels save a tenth of the bytes, and take ten times as long.
    packed = zlib.compress(_unpacked(closed.tasks), zlib.Z_BEST_SPEED)
    return bind("pack_figures", keys)(
        bool,
        unit=closed.unit,
        field=closed.field,
        size=len(closed.tasks),
        tasks=moment + _ZIPPED + packed,
    )


# Reading.


class Read(NamedTuple):
    """The figures of some minutes or hours."""

    #: The present minute or hour.
    now: int
    #: Minute or hour since the epoch; name of a task, empty: the queue in whole; figures as they are stored.
    rows: list[tuple[int, str, bytes]]


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
    count = min(count, TASKS_BATCH if of_tasks else unit.slots)

    def read(reply: Any) -> Read:
        now, moment, there, closed = reply
        rows = [
            (moment, name, text)
            for name, text in _fields(there)
            if bool(name) is of_tasks
        ]
        for its, stored in zip(range(now - first, -1, -1), closed, strict=False):
            if stored[: _MOMENT.size] == _MOMENT.pack(its):
                rows += [(its, name, text) for name, text in _entries(stored)]
        return Read(now, rows)

    return bind("read_figures", keys)(
        read,
        unit=unit,
        slots=unit.slots,
        first=first,
        count=count,
        of_tasks=int(of_tasks),
    )


def read_days(keys: DeliveryKeys, *, count: int) -> Call[dict[str, Figures]]:
    """Read the tasks of up to `DAYS_KEPT` days, the present one included."""

    def read(reply: Any) -> dict[str, Figures]:
        stored, there = reply
        before = dict(_entries(stored))
        since = {
            name: _difference(_read(text), _read(before.get(name, b"")))
            for name, text in _fields(there)
            if name
        }
        return {name: figures for name, figures in since.items() if figures}

    return bind("read_days", keys)(
        read, days_kept=DAYS_KEPT, count=min(count, DAYS_KEPT)
    )


def _difference(now: _Numbers, before: _Numbers) -> Figures:
    since = [
        [later - earlier for later, earlier in _in_columns(*part)]
        for part in zip(now, before, strict=True)
    ]
    # Totals never fall, unless somebody has deleted them.
    has_fallen = any(min(part, default=0) < 0 for part in since)
    return _figures(now if has_fallen else since)


def read_totals(keys: DeliveryKeys) -> Command[dict[str, Figures]]:
    """Read the figures of all times: of each task, and under an empty name of the queue in whole."""
    return Command(
        ("HGETALL", keys.totals),
        lambda reply: sum_up(_fields(reply)),
    )


#: The value of a slot: its moment, one of two kinds, and entries.
_MOMENT = struct.Struct(">I")
_PLAIN, _ZIPPED = b"\0", b"\1"
#: An entry: the sizes of a name, empty for the queue in whole, and of figures, and these.
_HEAD = struct.Struct(">HH")


def _unpacked(stored: bytes) -> bytes:
    kind, text = stored[_MOMENT.size :][:1], stored[_MOMENT.size + 1 :]
    if kind != _ZIPPED:
        return text if kind == _PLAIN else b""
    try:
        zipped = zlib.decompressobj()
        # Entries that came after the clock was set back lie behind the packed ones.
        return zipped.decompress(text, MOST_BYTES) + zipped.unused_data
    except zlib.error:
        return b""


def _entries(stored: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each name of a slot, and its figures as they are stored."""
    text, at = _unpacked(stored), 0
    while at + _HEAD.size <= len(text):
        size, length = _HEAD.unpack_from(text, at)
        at += _HEAD.size + size
        yield _name(text[at - size : at]), text[at : at + length]
        at += length


def _fields(reply: Any) -> Iterator[tuple[str, bytes]]:
    """Yield each name that is open, or of all times, and its figures as they are stored."""
    for field, text in fields_of(reply).items():
        if field[:5] == b"task:":
            yield _name(field[5:]), text


def _name(stored: bytes) -> str:
    return stored.decode(errors="replace")
