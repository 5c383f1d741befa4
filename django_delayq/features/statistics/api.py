"""Statistics of queues and tasks: series over minutes or hours, and totals since the first day.

Each call takes a few round trips, for any number of queues, because it asks all queues in one write.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSearch
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.calls import (
    DAYS_KEPT,
    TASKS_BATCH,
    Figures,
    Read,
    Unit,
    sum_up,
    total,
)
from django_delayq.jobs.answers import asking, complete
from django_delayq.redaction import show
from django_delayq.transport.call import Call
from django_delayq.transport.exchange import Made
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Steps

K = TypeVar("K")
T = TypeVar("T")

#: Bounds for a histogram of few buckets, ms: powers of four, from a millisecond to five minutes, where ours begin and end.
BOUNDS_MS = tuple(2.0**n / 1_000 for n in range(10, 30, 2))


class Span(NamedTuple):
    """The statistics of one minute or hour.

    Example::

        last = queue_statistics(["mail"], minutes=10)["mail"].spans[-1]
        print(last.since, last.figures.failures)
    """

    #: Its start, by the server's clock.
    since: datetime
    figures: Figures


class Series(NamedTuple):
    """The statistics of a queue or a task, minute by minute or hour by hour.

    Example::

        for span in queue_statistics(["mail"], hours=24)["mail"].spans:
            print(span.since, span.figures.runs)
    """

    unit: Unit
    #: The oldest first, without gaps. The last one is the current minute or hour.
    spans: list[Span]

    @property
    def total(self) -> Figures:
        """The sum of all spans."""
        return total(span.figures for span in self.spans)


@performed
def queue_statistics(
    queues: Iterable[str] | None = None,
    *,
    minutes: int | None = None,
    hours: int | None = None,
) -> Steps[dict[str, Series]]:
    """Return the statistics of each queue for the last ``minutes`` or ``hours``; by default of all queues, for an hour.

    The last one is the current minute or hour. Minutes are kept for 8 hours, hours for 90 days. It takes one round
    trip.

    Example::

        series = queue_statistics(["mail"], minutes=10)["mail"]
        print(series.total)

    Raises:
        QueueNotFound: a queue is not configured.
        InvalidSearch: the number is wrong, or both are given.
        PartialAnswer: some queues did not answer; ``found`` has the statistics of the others.
    """
    unit, count = _range(minutes, hours)
    names, parts = _parts_of(queues)
    answers = yield from asking(
        parts,
        (
            _one(statistics_calls.read_figures(each.keys, unit, count=count))
            for each in parts
        ),
    )
    series: dict[str, list[Series]] = {}
    for name, read in answers.of(names):
        series.setdefault(name, []).append(series_of(unit, count, read))
    found = {name: together_of(several) for name, several in series.items()}
    return complete(found, answers.missing)


aqueue_statistics = aperformed(queue_statistics)


@performed
def task_statistics(
    queue: str,
    task: str,
    *,
    minutes: int | None = None,
    hours: int | None = None,
) -> Steps[Series]:
    """Return the statistics of one task on a queue, as `queue_statistics` does for a queue.

    It reads all tasks of the queue: 60 minutes or 60 hours in a round trip.

    Example::

        task_statistics("mail", "shop.tasks.send_receipt", hours=24).total
    """
    unit, count = _range(minutes, hours)
    _, parts = _parts_of([queue])
    answers = yield from asking(
        parts, (_tasks_of(each.keys, unit, count) for each in parts)
    )
    reads = [read for _, read in answers.of(parts)]
    rows = [row for read in reads for row in read.rows if row[1] == task]
    return complete(series_of(unit, count, Read(reads[0].now, rows)), answers.missing)


atask_statistics = aperformed(task_statistics)


@performed
def tasks_statistics(
    queues: Iterable[str] | None = None,
    *,
    minutes: int | None = None,
    hours: int | None = None,
    days: int | None = None,
) -> Steps[dict[str, dict[str, Figures]]]:
    """Return the sums of the last ``minutes``, ``hours`` or ``days``, by queue and task.

    Days are UTC days, including today; a week of them is kept. With a thousand active tasks, ask for ``hours=2`` or for
    days: 60 minutes are ten times as much data as two hours.

    Example::

        figures = tasks_statistics(["mail"], hours=2)["mail"]["shop.tasks.send_receipt"]

    Raises:
        QueueNotFound: a queue is not configured.
        InvalidSearch: the number is wrong, or two of them are given.
    """
    if days is not None:
        if minutes is not None or hours is not None:
            raise InvalidSearch(
                f"minutes={show(minutes)}, hours={show(hours)}, days={show(days)}: give one of them"
            )
        if not _is_number(days):
            raise InvalidSearch(
                f"days={show(days)}: give a number of days, 1 to {DAYS_KEPT}"
            )
    unit, count = _range(minutes, hours)

    def sums(keys: DeliveryKeys) -> Steps[dict[str, Figures]]:
        if days is not None:
            return (yield from _one(statistics_calls.read_days(keys, count=days)))
        read = yield from _tasks_of(keys, unit, count)
        return sum_up((name, text) for _, name, text in read.rows)

    names, parts = _parts_of(queues)
    answers = yield from asking(parts, (sums(each.keys) for each in parts))
    found: dict[str, dict[str, Figures]] = {}
    for queue, tasks in answers.of(names):
        _merge(found.setdefault(queue, {}), tasks)
    return complete(found, answers.missing)


atasks_statistics = aperformed(tasks_statistics)


class Totals(NamedTuple):
    """The statistics of a queue since the first day. No number in it ever falls.

    Example::

        totals = statistics_totals(["mail"])["mail"]
        print(totals.queue.runs, totals.ended)
    """

    queue: Figures
    #: By name. Tasks beyond `STATISTICS` count as ``other``.
    tasks: dict[str, Figures]
    #: Number of ended jobs by state, including jobs that ended without a worker.
    ended: dict[State, int]


@performed
def statistics_totals(queues: Iterable[str] | None = None) -> Steps[dict[str, Totals]]:
    """Return the statistics of each queue since the first day, in one round trip; by default of all queues.

    Example::

        statistics_totals(["mail"])["mail"].ended

    Raises:
        QueueNotFound: a queue is not configured.
        PartialAnswer: see `queue_statistics`.
    """
    names, parts = _parts_of(queues)
    calls: list[Made] = [statistics_calls.read_totals(each.keys) for each in parts]
    calls += [queue_reads.counts(each.keys) for each in parts]
    answers = yield from asking([*parts, *parts], map(_one, calls))
    replies = answers.replies
    read = [
        (name, figures, counts.ended)
        for name, figures, counts in zip(
            names, replies[: len(parts)], replies[len(parts) :], strict=True
        )
        if not isinstance(figures, Exception) and not isinstance(counts, Exception)
    ]
    return complete(totals_by_queue(read), answers.missing)


astatistics_totals = aperformed(statistics_totals)


def _parts_of(queues: Iterable[str] | None) -> tuple[list[str], list[QueueSettings]]:
    """Return all that hold the jobs of queues; and of each the name of the queue under which its numbers count."""
    settings = conf.get_settings()
    names: list[str] = []
    parts: list[QueueSettings] = []
    for name in settings.names if queues is None else dict.fromkeys(queues):
        found = settings.queues_of(name)
        parts += found
        names += [name] * len(found)
    return names, parts


def _range(minutes: int | None, hours: int | None) -> tuple[Unit, int]:
    """Return the unit, and how many."""
    if minutes is not None and hours is not None:
        raise InvalidSearch(
            f"minutes={show(minutes)}, hours={show(hours)}: give one of the two"
        )
    unit, count = (Unit.MINUTE, 60) if minutes is None else (Unit.MINUTE, minutes)
    if hours is not None:
        unit, count = Unit.HOUR, hours
    if not _is_number(count):
        raise InvalidSearch(
            f"{unit}s={show(count)}: give a number of {unit}s, 1 to {unit.slots:,}"
        )
    return unit, min(count, unit.slots)


def _is_number(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count >= 1


def _one(call: Call[T] | Command[T]) -> Steps[T]:
    reply: T = yield call
    return reply


def together_of(several: Sequence[Series]) -> Series:
    """Return what was measured of several queues, or shards, as that of one."""
    if len(several) == 1:
        return several[0]
    # Shards may lie on several servers, of which one is in the next minute already.
    found: dict[datetime, list[Figures]] = {}
    for span in (span for series in several for span in series.spans):
        found.setdefault(span.since, []).append(span.figures)
    spans = [Span(since, total(found[since])) for since in sorted(found)]
    return Series(several[0].unit, spans[-len(several[0].spans) :])


def series_of(unit: Unit, count: int, read: Read) -> Series:
    """Return as a series what was read of a queue in whole, or of one task."""
    found = sum_up((moment, text) for moment, _, text in read.rows)
    return Series(
        unit,
        [
            Span(
                datetime.fromtimestamp(moment * unit.seconds, UTC),
                found.get(moment) or Figures(),
            )
            for moment in range(read.now - count + 1, read.now + 1)
        ],
    )


def _tasks_of(keys: DeliveryKeys, unit: Unit, count: int) -> Steps[Read]:
    """Read what there is of tasks, `TASKS_BATCH` minutes or hours of each queue a round trip."""
    rows: list[tuple[int, str, bytes]] = []
    below = math.inf
    for first in range(0, count, TASKS_BATCH):
        part = min(TASKS_BATCH, count - first)
        read: Read = yield statistics_calls.read_figures(
            keys, unit, first=first, count=part, of_tasks=True
        )
        # If the next minute has begun meanwhile, the first one was read before.
        rows += [row for row in read.rows if row[0] < below]
        below = read.now - first - part + 1
    return Read(read.now, rows)


def _merge(found: dict[K, Figures], more: dict[K, Figures]) -> None:
    for key, figures in more.items():
        if key in found:
            found[key].add(figures)
        else:
            found[key] = figures


def totals_by_queue(
    read: Iterable[tuple[str, dict[str, Figures], dict[State, int]]],
) -> dict[str, Totals]:
    """Return what was read of queues, or of their shards, under the names of the queues."""
    found: dict[str, tuple[dict[str, Figures], Counter[State]]] = {}
    for queue, tasks, ended in read:
        known, counted = found.setdefault(queue, ({}, Counter()))
        _merge(known, tasks)
        counted.update(ended)
    return {
        queue: totals_of(tasks, dict(ended)) for queue, (tasks, ended) in found.items()
    }


def totals_of(tasks: dict[str, Figures], ended: dict[State, int]) -> Totals:
    """Return what `read_totals` has read; the figures under an empty name are those of the queue."""
    return Totals(
        tasks.get("", Figures()),
        {name: figures for name, figures in tasks.items() if name},
        ended,
    )
