"""How jobs ended, on its way to the list that each queue keeps for people.

A process collects the ends that the server has settled, and adds them to the list a few times a second at most. So what
this costs is bounded by time, however many jobs end: of a queue that remembers 1,000, no more than the last 1,000 are
written. A process that is killed takes the ends of its last moment with it.
"""

from collections import deque
from functools import partial

from redis.exceptions import ResponseError

from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.core.states import State
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import (
    ENDED_BATCH,
    NAME_LIMIT,
    NONE,
    EndRecord,
    first_line,
)
from django_delayq.logs import get_log
from django_delayq.redaction import ENCRYPTED
from django_delayq.transport.line import Line
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.reports import EndReport

logger = get_log("django_delayq.worker")

#: How long an end waits for others before it is written.
RECORD_AFTER_MS = 250.0
#: Payloads of a queue's ended attempts that may wait here, bytes: with more, the ends are written at once.
HELD_BYTES = 1 << 22


class _Ends:
    """The ends of one queue that are not written yet, the oldest first.

    Attempts are kept as they are, because most of those that end on a busy queue are never written: newer ones take their
    places. So they cost nothing each.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        #: What the server did not get when it was written before.
        self.unwritten: list[EndRecord] = []
        # The attempts of a call, and the bytes of their payloads.
        self._groups: deque[tuple[list[Attempt], int]] = deque()
        self._count = 0
        #: Of all payloads that are held here.
        self.bytes = 0

    def add(self, attempts: list[Attempt]) -> None:
        """Add attempts, and drop those that enough newer ones follow."""
        size = sum([len(attempt.leased.payload) for attempt in attempts])
        self._groups.append((attempts, size))
        self._count += len(attempts)
        self.bytes += size
        while self._count - len(self._groups[0][0]) >= self.settings.keep_ended:
            dropped, size = self._groups.popleft()
            self._count -= len(dropped)
            self.bytes -= size

    def take(self) -> list[EndRecord]:
        """Return the records of the last ends, as many as the queue remembers, and forget them here."""
        attempts = [attempt for group, _ in self._groups for attempt in group]
        keep = self.settings.keep_ended
        records = self.unwritten + list(map(_record, attempts[-keep:]))
        self.unwritten = []
        self._groups.clear()
        self._count = self.bytes = 0
        return records[-keep:]


class EndedReport(EndReport):
    """The ends of the jobs of one process that are not written yet. Owned by the claim loop's thread."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._ends: dict[str, _Ends] = {}

    def note(self, attempts: list[Attempt]) -> None:
        if not attempts:
            return
        first = attempts[0]
        settings = first.queue
        verdict = first.verdict
        if not settings.keep_ended or verdict is None or not verdict.is_end:
            return
        found = self._ends.get(settings.name)
        if found is None:
            found = self._ends[settings.name] = _Ends(settings)
        found.add(attempts)
        if found.bytes > HELD_BYTES:
            self.due_ms = 0.0
        elif self.due_ms == float("inf"):
            self.due_ms = monotonic_ms() + RECORD_AFTER_MS

    def tell(self) -> None:
        """Write the ends that were noted, and later once more those that the server did not get."""
        self.due_ms = float("inf")
        for queue, ends in self._ends.items():
            records = ends.take()
            for start in range(0, len(records), ENDED_BATCH):
                part = records[start : start + ENDED_BATCH]
                call = ended_calls.note_ended(
                    ends.settings.keys, part, keep=ends.settings.keep_ended
                )
                self._ask(queue, call, lost=partial(self._keep, ends, part))

    def _keep(self, ends: _Ends, records: list[EndRecord]) -> None:
        ends.unwritten += records
        self.due_ms = monotonic_ms() + RECORD_AFTER_MS

    def _refused(self, queue: str, error: ResponseError) -> None:
        logger.warning(
            "queue %s: the server refuses to store how jobs ended (KEEP_ENDED), so the list of ended jobs is incomplete: %s",
            queue,
            error,
        )


def _record(attempt: Attempt) -> EndRecord:
    assert attempt.verdict is not None
    leased, offset_ms = attempt.leased, attempt.server_minus_local_ms
    has_run = attempt.verdict.has_run and not attempt.is_unrun
    name = attempt.task.name if attempt.task is not None else attempt.unknown_task
    text = "" if attempt.verdict is Verdict.SUCCEED else attempt.message
    if text and attempt.encrypts:
        text = ENCRYPTED
    return EndRecord(
        leased.token,
        name[:NAME_LIMIT],
        State(attempt.verdict),
        int(attempt.ended_ms + offset_ms),
        attempt.late_ms if attempt.started_ms else NONE,
        attempt.ended_ms - attempt.started_ms if has_run else NONE,
        leased.attempts + has_run,
        first_line(text) if text else "",
    )
