"""Where the timeline of lateness has its marks: from jobs that ended to points of a drawing."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django_delayq import EndedJob

#: What the upright axis may show, in ms. It is logarithmic: most jobs are a few ms late, and the worst matters as well.
LEVELS = {0.1: "0.1 ms", 1: "1 ms", 10: "10 ms", 100: "100 ms", 1000: "1 s", 10_000: "10 s"}  # fmt: skip
#: It reaches at least as far, or it would jump with every job.
HIGH_ENOUGH_MS = 100
#: Spans of time that the level axis may show.
SPANS = [timedelta(minutes=minutes) for minutes in (1, 2, 5, 10)]
#: How many moments it names.
MOMENTS = 5


class Mark(NamedTuple):
    """A job: where it stands, and what is said of it."""

    x: float
    y: float
    queue: str
    says: str


class Tick(NamedTuple):
    """A line of an axis."""

    at: float
    says: str
    #: Left out where there is little room.
    is_extra: bool = False


class Chart:
    """The jobs whose lateness is known, of the last ten minutes at most; each axis has room for all of them."""

    #: Where the axes end, in the units of the drawing. The template leaves room for what is written beside them.
    LEFT, TOP, RIGHT, BOTTOM = 76, 0, 900, 320

    def __init__(self, jobs: Iterable[EndedJob], now: datetime) -> None:
        late_ms = {
            job: job.lateness_ms
            for job in jobs
            if job.lateness_ms is not None and now - job.ended_at <= SPANS[-1]
        }
        oldest = max((now - job.ended_at for job in late_ms), default=SPANS[0])
        self._span = next(span for span in SPANS if oldest <= span)
        worst_ms = max(late_ms.values(), default=0.0)
        self._top_ms = next(
            (ms for ms in LEVELS if ms >= max(worst_ms, HIGH_ENOUGH_MS)), max(LEVELS)
        )
        self.marks = [
            Mark(
                self._x(now - job.ended_at),
                self.y(late),
                job.queue,
                f"{job.queue}, {job.ended_at:%H:%M:%S}: {late:.1f} ms late",
            )
            for job, late in late_ms.items()
        ]
        self.levels = [
            Tick(self.y(ms), text) for ms, text in LEVELS.items() if ms <= self._top_ms
        ]
        ages = [self._span * part / (MOMENTS - 1) for part in range(MOMENTS)]
        self.moments = [
            Tick(self._x(age), _ago(age), is_extra=number % 2 == 1)
            for number, age in enumerate(ages)
        ]

    def y(self, late_ms: float) -> float:
        """Return the height at which a lateness stands."""
        least_ms = min(LEVELS)
        shown_ms = min(max(late_ms, least_ms), self._top_ms)
        part = math.log(shown_ms / least_ms) / math.log(self._top_ms / least_ms)
        return round(self.BOTTOM - part * (self.BOTTOM - self.TOP), 1)

    def _x(self, age: timedelta) -> float:
        """Return where an age stands: now is at the right. The clocks of site and server may differ a little."""
        part = max(age / self._span, 0.0)
        return round(self.RIGHT - part * (self.RIGHT - self.LEFT), 1)


def _ago(age: timedelta) -> str:
    seconds = round(age.total_seconds())
    if not seconds:
        return "now"
    return f"−{seconds} s" if seconds < 60 else f"−{seconds / 60:g} min"
