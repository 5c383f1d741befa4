"""Where the timeline of lateness has its marks: from jobs that ended to points of a drawing."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django_delayq import EndedJob

#: The drawing, in its own units, and the space left of it and below it for the axes.
WIDTH, HEIGHT, LEFT, BELOW = 900, 340, 76, 44
#: What the upright axis shows, in ms. It is logarithmic: most jobs are a few ms late, and the worst is what matters.
LEAST_MS, MOST_MS = 0.1, 10_000.0
LEVELS = {
    0.1: "0.1 ms",
    1: "1 ms",
    10: "10 ms",
    100: "0.1 s",
    1000: "1 s",
    10_000: "10 s",
}
#: Spans of time that the level axis may show; the least that has room for everything.
SPANS = [timedelta(minutes=minutes) for minutes in (1, 2, 5, 10)]
#: Moments that are named on the level axis.
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
    #: Left out where there is no room.
    is_extra: bool


class Chart(NamedTuple):
    marks: list[Mark]
    levels: list[Tick]
    moments: list[Tick]
    span: timedelta


def draw(jobs: Iterable[EndedJob], now: datetime) -> Chart:
    """Place the jobs whose lateness is known, of the last ten minutes at most."""
    late = {
        job: job.late_ms
        for job in jobs
        if job.late_ms is not None and now - job.ended_at <= SPANS[-1]
    }
    age = max((now - job.ended_at for job in late), default=SPANS[0])
    span = next(span for span in SPANS if age <= span)
    marks = [
        Mark(
            _x((now - job.ended_at) / span),
            level_of(late_ms),
            job.queue,
            f"{job.queue}, {job.ended_at:%H:%M:%S}: {late_ms:.1f} ms late",
        )
        for job, late_ms in late.items()
    ]
    levels = [Tick(level_of(ms), text, is_extra=False) for ms, text in LEVELS.items()]
    moments = [
        Tick(_x(part / (MOMENTS - 1)), _ago(span * part / (MOMENTS - 1)), part % 2 == 1)
        for part in range(MOMENTS)
    ]
    return Chart(marks, levels, moments, span)


def _x(age: float) -> float:
    """Place an age, as a part of the span: now is at the right."""
    return round(WIDTH - min(max(age, 0.0), 1.0) * (WIDTH - LEFT), 1)


def level_of(late_ms: float) -> float:
    """Return the height at which a lateness stands."""
    shown = min(max(late_ms, LEAST_MS), MOST_MS)
    part = math.log(shown / LEAST_MS) / math.log(MOST_MS / LEAST_MS)
    return round((HEIGHT - BELOW) * (1 - part), 1)


def _ago(age: timedelta) -> str:
    seconds = round(age.total_seconds())
    if not seconds:
        return "now"
    return f"−{seconds} s" if seconds < 60 else f"−{seconds / 60:g} min"
