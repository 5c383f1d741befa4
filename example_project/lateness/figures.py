"""How late jobs began, as the server remembers it of the last that ended."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from django_delayq import EndedJob, ended_jobs

#: How many of the last jobs of all queues are looked at.
LAST = 300


class Figures(NamedTuple):
    """The lateness of some jobs, in ms."""

    jobs: int
    median_ms: float
    worst_ms: float


def last_jobs() -> list[EndedJob]:
    """Return the last jobs that ended, the newest first."""
    return ended_jobs(limit=LAST)


def figures_of(jobs: Sequence[EndedJob]) -> Figures | None:
    """Sum up; None if no lateness is known. A job that was tried again, or did not run, has none."""
    late_ms = [job.lateness_ms for job in jobs if job.lateness_ms is not None]
    if not late_ms:
        return None
    return Figures(len(late_ms), statistics.median(late_ms), max(late_ms))
