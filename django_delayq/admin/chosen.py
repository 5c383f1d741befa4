"""The jobs that a user has chosen for a change, as pages of `bulk`: those that were ticked, or some that a search finds."""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from django_delayq.core import queue_reads
from django_delayq.core.queue_reads import Inspected
from django_delayq.display.time_texts import Moment
from django_delayq.jobs import bulk
from django_delayq.jobs.answers import leaving_out
from django_delayq.jobs.job import NOW, Job
from django_delayq.jobs.walk import Mark, Walk, ask_time, target_of
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

#: A step changes so many jobs at most, and makes no further call after so long, s.
STEP_JOBS = 2_000
STEP_S = 2.0


def time_text(ms: int) -> str:
    """Write a time of the server for the admin's log."""
    moment = Moment.of(ms, ms)
    assert moment is not None
    return f"{moment.in_seconds} {moment.zone}".strip()


class Named:
    """The jobs that somebody has named, as pages of a change."""

    def __init__(self, jobs: Sequence[Job[Any]], *, moves_to: str = NOW) -> None:
        # A page is of one queue.
        self._jobs = sorted(jobs, key=lambda job: job.queue)
        self._moves_to = moves_to
        self.target_ms = 0
        #: The jobs of the last page, as the server had them.
        self.page: list[Inspected] = []
        #: The start time and the priority of each, as they were found, by id.
        self.before: dict[str, tuple[int | None, int | None]] = {}
        #: The error of each queue that cannot be read, by its name.
        self.missing: dict[str, Exception] = {}

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Look where the next of them are."""
        while self._jobs:
            if not self.target_ms:
                self.target_ms = target_of(self._moves_to, (yield ask_time()))
            queue = self._jobs[0].queue
            batch = [job for job in self._jobs[: bulk.BATCH] if job.queue == queue]
            replies = yield from together([_inspecting(job) for job in batch])
            error = next((one for one in replies if isinstance(one, Exception)), None)
            if error is not None:
                yield from self.leave_out(queue, error)
                continue
            self.page = [one for one in replies if not isinstance(one, Exception)]
            self._jobs = self._jobs[len(batch) :]
            for job in batch:
                self.before[job.id] = (job.start_time_ms, job.priority)
            return iter(batch)
        return None

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """See `Walk.leave_out`."""
        rest = {job.queue: None for job in self._jobs if job.queue != queue}
        left = yield from leaving_out(self.missing, queue, error, list(rest))
        self._jobs = [job for job in self._jobs if job.queue in left]


def _inspecting(job: Job[Any]) -> Steps[Inspected]:
    seen: Inspected = yield queue_reads.inspect(job._keys, job.token)
    job._take(seen)
    return seen


class Step:
    """Some of the jobs of a search, as pages of a change: as many as fit into one request."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._deadline = monotonic() + STEP_S
        self._jobs = 0
        #: How many jobs it has looked at.
        self.looked = 0

    @property
    def target_ms(self) -> int:
        return self._walk.target_ms

    @property
    def mark(self) -> Mark:
        """Where the next step begins."""
        return self._walk.mark

    @property
    def missing(self) -> dict[str, Exception]:
        """See `Walk.missing`."""
        return self._walk.missing

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """See `Walk.leave_out`."""
        return self._walk.leave_out(queue, error)

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Find some more, unless this was enough for one request."""
        if self._jobs >= STEP_JOBS or monotonic() >= self._deadline:
            return None
        page = yield from self._walk.read()
        if page is None:
            return None
        self.looked += page.looked
        return self._counted(fit.job for fit in page.fits)

    def _counted(self, jobs: Iterator[Job[Any]]) -> Iterator[Job[Any]]:
        for job in jobs:
            self._jobs += 1
            yield job
