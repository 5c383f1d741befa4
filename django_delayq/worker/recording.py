"""How jobs ended, on its way to the list that each queue keeps for people.

A process collects the ends that the server has settled, and adds them to the list a few times a second at most. So what
this costs is bounded by time, however many jobs end: of a queue that remembers 1,000, no more than the last 1,000 are
written. A process that is killed takes the ends of its last moment with it.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from redis.exceptions import RedisError, ResponseError

from django_delayq.calls.line import Line, UnderWay
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.delivery import ended
from django_delayq.delivery.ended import (
    ENDED_BATCH,
    NAME_LIMIT,
    NONE,
    EndRecord,
    first_line,
)
from django_delayq.delivery.states import State
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.logs import get_log
from django_delayq.worker.attempt import Attempt, Verdict

logger = get_log("django_delayq.worker")

#: How long an end waits for others before it is written.
RECORD_AFTER_MS = 250.0
#: The verdicts that end a job for good, or until somebody replays it.
_ENDS = frozenset(
    {
        Verdict.SUCCEED,
        Verdict.CANCEL,
        Verdict.EXPIRE,
        Verdict.BURY,
        Verdict.QUARANTINE,
    }
)
#: Those of an attempt that ran.
_RAN = frozenset({Verdict.SUCCEED, Verdict.CANCEL, Verdict.BURY})
#: What the attempts of one call share: how they ended, whether they ran, and what to add for the server's clock.
_Shared = tuple[State, bool, float]
#: What is kept of an attempt until it is written, which on a busy queue it mostly never is: token, task, start, end, start
#: time, attempts before it, message, and what it shares. A bare tuple, because each job makes one, and not the attempt
#: itself, which holds the payload.
_End = tuple[str, TaskDefinition | str, float, float, int, int, str, _Shared]


class Recording:
    """The ends of the jobs of one process that are not written yet. Owned by the claim loop's thread."""

    def __init__(self, line: Line) -> None:
        self._line = line
        #: When to write, by `monotonic_ms`; infinite while there is nothing to write.
        self.due_ms = float("inf")
        self._ends: dict[str, tuple[QueueSettings, deque[_End]]] = {}
        self._told: list[tuple[QueueSettings, list[_End], UnderWay[None]]] = []
        # What was logged of each queue.
        self._problems: dict[str, str] = {}

    @property
    def has_told(self) -> bool:
        """Whether replies to `tell` are still to be read."""
        return bool(self._told)

    def note(self, attempts: Sequence[Attempt]) -> None:
        """Take in attempts of one queue with one verdict, which the server has settled."""
        first = attempts[0]
        settings = first.queue
        if not settings.keep_ended or first.verdict not in _ENDS:
            return
        found = self._ends.get(settings.name)
        if found is None:
            found = self._ends[settings.name] = (
                settings,
                deque(maxlen=settings.keep_ended),
            )
        has_run = first.verdict in _RAN and not first.is_unrun
        shared = State(first.verdict), has_run, first.server_minus_local_ms
        if first.verdict is Verdict.SUCCEED:
            found[1].extend(
                [
                    (
                        (leased := a.leased).token,
                        a.task or "",
                        a.started_ms,
                        a.ended_ms,
                        leased.start_time_ms,
                        leased.attempts,
                        "",
                        shared,
                    )
                    for a in attempts
                    if not a.is_lost
                ]
            )
        else:
            found[1].extend(
                [
                    (
                        a.leased.token,
                        a.task or a.unknown_task,
                        a.started_ms,
                        a.ended_ms,
                        a.leased.start_time_ms,
                        a.leased.attempts,
                        a.message,
                        shared,
                    )
                    for a in attempts
                    if not a.is_lost
                ]
            )
        if self.due_ms == float("inf"):
            self.due_ms = monotonic_ms() + RECORD_AFTER_MS

    def tell(self) -> None:
        """Write what was noted; the calls go out with the line's next calls, or at `learn`."""
        self.due_ms = float("inf")
        for settings, ends in self._ends.values():
            while ends:
                part = list(islice(ends, ENDED_BATCH))
                for _ in part:
                    ends.popleft()
                call = ended.note_ended(
                    settings.keys, list(map(_record, part)), keep=settings.keep_ended
                )
                self._told.append((settings, part, self._line.ask(call)))

    def learn(self) -> None:
        """Take in the replies to `tell`: what the server refuses is dropped, what it did not get is written again.

        If the server is away, this says nothing: every other call of the loop does.
        """
        told, self._told = self._told, []
        for settings, part, under_way in told:
            try:
                under_way.finish()
            except ResponseError as error:
                self._refuse(settings.name, error)
            except (RedisError, OSError):
                ends = self._ends[settings.name][1]
                newer = list(ends)
                ends.clear()
                ends.extend(part + newer)
                self.due_ms = monotonic_ms() + RECORD_AFTER_MS
            else:
                self._problems.pop(settings.name, None)

    def _refuse(self, queue: str, error: ResponseError) -> None:
        if self._problems.get(queue) != str(error):
            self._problems[queue] = str(error)
            logger.warning(
                "queue %s: the server does not take what is remembered of ended jobs (KEEP_ENDED), so that is dropped: %s",
                queue,
                error,
            )


def _record(end: _End) -> EndRecord:
    token, task, started_ms, ended_ms, due_ms, attempts, text, shared = end
    outcome, has_run, offset_ms = shared
    is_first = attempts == 0 and started_ms
    return EndRecord(
        token,
        (task if isinstance(task, str) else task.name)[:NAME_LIMIT],
        outcome,
        int(ended_ms + offset_ms),
        # A retry has waited for its turn. No job starts early: our estimate of the server's clock is off by a little.
        max(0.0, started_ms + offset_ms - due_ms) if is_first else NONE,
        ended_ms - started_ms if has_run else NONE,
        attempts + has_run,
        first_line(text) if text else "",
    )
