"""How far the jobs of a process are, as their tasks say, on its way to the server: in one write for all, twice a second.

The end of an attempt deletes its progress on the server. If its process is killed, the sweep finds it.
"""

from collections.abc import Callable
from itertools import chain, groupby

from redis.exceptions import ResponseError

from django_delayq.calls.line import Line
from django_delayq.clock import monotonic_ms
from django_delayq.delivery.bounds import MAX_BATCH
from django_delayq.delivery.progress import JobProgress, note_progress
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.reports import Report

logger = get_log("django_delayq.worker")

#: The time between two writes.
PROGRESS_EVERY_MS = 500.0


class Progressing(Report):
    """The progress that the tasks of one process have reported. The claim loop's thread owns all but `note`."""

    def __init__(
        self, line: Line, dispatch: Dispatch, wake: Callable[[], None]
    ) -> None:
        """``wake`` ends the wait of the claim loop."""
        super().__init__(line)
        self._dispatch = dispatch
        self._wake = wake
        self._told_ms = float("-inf")
        # What is to be written of each attempt: those who run jobs put it in, the loop takes it out.
        self._latest: dict[Attempt, bytes] = {}
        # Those of which the server knows something.
        self._written: dict[Attempt, None] = {}

    def note(self, attempt: Attempt, stored: bytes) -> None:
        """Take in how far a job is. Any thread may call this."""
        self._latest[attempt] = stored
        if self.due_ms == float("inf"):
            # `tell` sets it back before it takes anything out, so what comes later is due again.
            self.due_ms = max(monotonic_ms(), self._told_ms + PROGRESS_EVERY_MS)
            self._wake()

    def tell(self) -> None:
        """Write what tasks have said, and forget what was said of attempts that have ended.

        What does not reach the server is not sent again: more follows soon.
        """
        self.due_ms = float("inf")
        self._told_ms = monotonic_ms()
        latest: dict[Attempt, bytes] = {}
        while self._latest:
            attempt, stored = self._latest.popitem()
            if attempt.verdict is None and attempt.has_lease:
                latest[attempt] = stored
        running = self._dispatch.running
        over = [attempt for attempt in self._written if attempt not in running]
        for attempt in over:
            del self._written[attempt]
        self._written |= dict.fromkeys(latest)
        told = chain(latest.items(), zip(over, [b""] * len(over), strict=True))
        for queue, jobs in groupby(sorted(told, key=_queue_of), key=_queue_of):
            self._note(queue, list(jobs))
        if self._written:
            # Their ends have to be noticed.
            self.due_ms = self._told_ms + PROGRESS_EVERY_MS

    def _note(self, queue: str, jobs: list[tuple[Attempt, bytes]]) -> None:
        keys = jobs[0][0].queue.keys
        for start in range(0, len(jobs), MAX_BATCH):
            part = [
                JobProgress(attempt.leased.token, attempt.leased.fence, stored)
                for attempt, stored in jobs[start : start + MAX_BATCH]
            ]
            self._ask(queue, note_progress(keys, part))

    def _refused(self, queue: str, error: ResponseError) -> None:
        logger.warning(
            "queue %s: the server refuses to store the progress of jobs, so it is not shown: %s",
            queue,
            error,
        )


def _queue_of(told: tuple[Attempt, bytes]) -> str:
    return told[0].queue.name
