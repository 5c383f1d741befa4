"""Statistics of the jobs that ended in a process, until the figures of their queue have them.

Times are collected as they come and counted many at a time, so a job costs a fraction of a microsecond. Every ten seconds
the figures of each queue go to the server. A process that is killed takes those of its last ten seconds with it; so does a
call whose reply is lost, because a repeat might count them twice.
"""

import sys
from array import array
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial

from redis.exceptions import RedisError, ResponseError

from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings, get_settings, keys_of
from django_delayq.core.reasons import Kind
from django_delayq.features.statistics import calls as statistics_calls
from django_delayq.features.statistics.calls import (
    FIGURES_BATCH,
    LAST_BUCKET,
    UNKNOWN,
    Closed,
    Figures,
    Histogram,
    Outcome,
)
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.logs import get_log
from django_delayq.transport.line import Line, UnderWay
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.reports import EndReport

logger = get_log("django_delayq.worker")

#: How long a figure waits for others before it is written.
COUNT_AFTER_MS = 10_000.0
#: So many times are counted at once.
COUNTED_AT_ONCE = 4_096
_OUTCOMES = {
    verdict: Outcome(verdict.value)
    for verdict in Verdict
    if verdict.value in set(Outcome)
}
#: Before the first attempt of a batch. None is the task of attempts whose task this process does not know.
_NO_TASK_YET = object()
#: Queue; task, or the name of one that this process does not know; verdict; whether the task ran.
_Key = tuple[str, TaskDefinition | str | None, Verdict, bool]


class _Counted:
    """Statistics of the attempts of one task on one queue that ended in one way."""

    __slots__ = ("duration", "has_run", "late_us", "lateness", "number", "took_us")

    def __init__(self, *, has_run: bool) -> None:
        self.has_run = has_run
        self.number = 0
        # Collected, and not counted yet. Attempts that did not run are in the second one, for their number.
        self.late_us: list[float] = []
        self.took_us: list[float] = []
        self.lateness = Histogram()
        self.duration = Histogram()

    def count(self) -> None:
        """Count what was collected."""
        self.number += len(self.took_us)
        for times_us, histogram in (
            (self.late_us, self.lateness),
            (self.took_us, self.duration),
        ):
            if times_us and self.has_run:
                histogram.add(counted(times_us))
            times_us.clear()


def counted(times_us: list[float]) -> Histogram:
    """Return times as a histogram, in the buckets of `statistics.bucket_of`."""
    # The first two bytes of a float are its sign, its exponent and four bits of its fraction: sixteen buckets an octave.
    # To look at them is a tenth of the work of computing a logarithm for each.
    first = 3 if sys.byteorder == "little" else 0
    heads = memoryview(array("d", times_us)).cast("B").cast("H")[first::4]
    buckets: Counter[int] = Counter()
    for head, number in Counter(heads).items():
        # Before 1 us, and below 0, where our estimate of the server's clock is off by a little, is the first bucket.
        bucket = 0 if head >= 0x8000 else max(0, (head >> 2) - 4 * 1023)
        buckets[min(bucket, LAST_BUCKET)] += number
    return Histogram(buckets, max(0, int(sum(times_us))))


class StatisticsReport(EndReport):
    """The figures of one process that are not written yet. Owned by the claim loop's thread."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        # How many tasks a queue has figures of; 0: nothing is counted.
        self._most_tasks = get_settings().statistics
        self._counted: dict[_Key, _Counted] = {}
        self._uncounted = 0
        # Where the last attempts were counted, and what they were; None: nowhere.
        self._last: _Counted | None = None
        self._last_task: TaskDefinition | None = None
        self._last_queue: QueueSettings | None = None
        self._last_verdict: Verdict | None = None
        # Slots that are over, by queue; `tell` packs them.
        self._closed: list[tuple[str, Closed]] = []
        self._packing: list[UnderWay[bool]] = []

    @property
    def has_told(self) -> bool:
        return super().has_told or bool(self._packing)

    def note(self, attempts: list[Attempt]) -> None:
        if not self._most_tasks:
            return
        task: object = _NO_TASK_YET
        for attempt in attempts:
            if attempt.task is not task or task is None:
                task = attempt.task
                # Most attempts are like those before; comparing saves look-ups, as Python hashes enum members slowly.
                if (
                    task is None
                    or task is not self._last_task
                    or attempt.verdict is not self._last_verdict
                    or attempt.queue is not self._last_queue
                    or attempt.is_unrun
                ):
                    self._look_up(attempt)
                if (counted := self._last) is None:
                    return
                took_us, late_us = counted.took_us.append, counted.late_us.append
            took_us((attempt.ended_ms - attempt.started_ms) * 1_000.0)
            late_us(attempt.late_ms * 1_000.0)
        self._uncounted += len(attempts)
        if self._uncounted >= COUNTED_AT_ONCE:
            self._count()

    def _look_up(self, attempt: Attempt) -> None:
        """Find where attempts like this one are counted; None: nowhere."""
        self._last, verdict = None, attempt.verdict
        self._last_task, self._last_queue = attempt.task, attempt.queue
        # The one after an attempt that did not run is looked up again.
        self._last_verdict = None if attempt.is_unrun else verdict
        if verdict is None or verdict not in _OUTCOMES:
            return
        has_run = verdict.has_run and not attempt.is_unrun
        task: TaskDefinition | str | None = attempt.task
        if task is None and verdict is Verdict.HOLD and attempt.hold is not None:
            # What lacks a key, a format or a codec was not read: nobody knows its task.
            reason = attempt.hold.reason
            task = reason.name if reason.kind == Kind.TASK else None
        key = attempt.queue.name, task, verdict, has_run
        if key not in self._counted:
            self._counted[key] = _Counted(has_run=has_run)
            self.due_ms = min(self.due_ms, monotonic_ms() + COUNT_AFTER_MS)
        self._last = self._counted[key]

    def _count(self) -> None:
        self._uncounted = 0
        for counted in self._counted.values():
            counted.count()

    def _take(self) -> dict[str, dict[str, Figures]]:
        """Return the counts by queue and task, and begin at zero; under an empty name is the queue in whole."""
        self._count()
        found: dict[str, dict[str, Figures]] = defaultdict(lambda: defaultdict(Figures))
        for (queue, task, verdict, _), counted in self._counted.items():
            outcomes = Counter({_OUTCOMES[verdict]: counted.number})
            figures = Figures(outcomes, counted.lateness, counted.duration)
            found[queue][""].add(figures)
            # A job that is given back unopened has a task, which only nobody has looked up.
            if task is not None:
                name = task if isinstance(task, str) else task.name
                found[queue][name].add(figures)
            elif verdict is not Verdict.GIVE_BACK:
                found[queue][UNKNOWN].add(figures)
        self._counted = {}
        self._last = self._last_task = self._last_queue = self._last_verdict = None
        return found

    def tell(self) -> None:
        """Write what was counted. Counts that the server refuses, or may have, are not sent again."""
        self.due_ms = float("inf")
        closed, self._closed = self._closed, []
        for queue, slot in closed:
            pack = statistics_calls.pack_figures(keys_of(queue), slot)
            self._packing.append(self._line.ask(pack))
        for queue, figures in self._take().items():
            names = list(figures)
            for start in range(0, len(names), FIGURES_BATCH):
                part = {
                    name: figures[name] for name in names[start : start + FIGURES_BATCH]
                }
                add = statistics_calls.add_figures(
                    keys_of(queue), part, most_tasks=self._most_tasks
                )
                self._ask(queue, add, partial(self._close, queue))

    def _close(self, queue: str, closed: list[Closed]) -> None:
        # The claim loop would wait for calls that are made here.
        self._closed += [(queue, slot) for slot in closed]
        if closed:
            self.due_ms = 0.0

    def learn(self) -> None:
        super().learn()
        packing, self._packing = self._packing, []
        for each in packing:
            # What is not packed can be read as well.
            with suppress(RedisError, OSError):
                each.finish()

    def _refused(self, queue: str, error: ResponseError) -> None:
        logger.warning(
            "queue %s: the server refuses to store statistics (STATISTICS), so those of the last 10 s are lost: %s",
            queue,
            error,
        )
