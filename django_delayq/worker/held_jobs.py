"""Releases held jobs that this process can run by now, as many as it can soon start."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from redis.client import Redis

from django_delayq.conf import QueueSettings, get_keyring
from django_delayq.core import hold as hold_calls
from django_delayq.core.claim import EndedHere
from django_delayq.core.reasons import Kind, Reason
from django_delayq.jobs.registry import all_tasks, find_task, get_handler
from django_delayq.logs import get_log
from django_delayq.redaction import show
from django_delayq.transport.run import run
from django_delayq.wire.signatures import readable_marks
from django_delayq.worker import job_signals
from django_delayq.worker.outage import StepPause

logger = get_log("django_delayq.worker")

#: How often a process looks among held jobs for tasks that it knows.
LOOK_AT_HELD_MS = 5_000.0
#: How many different calls it looks at, from the first and from the cursor on, among those that other code did not take.
MOST_SHAPES = 1_000
#: Ids in one line of the log, at most.
MOST_IDS = 10


class Released(NamedTuple):
    """How many held jobs may run now, and whether more may be held that could."""

    jobs: int
    has_more: bool

    @classmethod
    def of(cls, jobs: int, limit: int, cursor: bytes) -> "Released":
        """Return the result of a call that has released ``jobs`` of at most ``limit``; empty ``cursor``: it has seen all."""
        return cls(jobs, jobs >= limit or bool(jobs and cursor))


class HeldJobs:
    """Looks at the held jobs of one queue; call `turn` whenever `next_ms` has come. Owned by the claim loop."""

    def __init__(
        self,
        client: Redis,
        settings: QueueSettings,
        others: Sequence[Callable[[int], Released]] = (),
    ) -> None:
        """``others`` let go up to so many jobs that were held for something else than what a process lacked."""
        self._client = client
        self._settings = settings
        self._others = others
        self._cursor = b""
        #: When to look next, by our monotonic clock; a new process looks at once.
        self.next_ms = 0.0
        self._pause = StepPause()

    def rest(self, now_ms: float, error: Exception) -> None:
        """Do nothing for a while: a step has failed."""
        self.next_ms = now_ms + self._pause.after(error)

    def turn(self, now_ms: float, limit: int) -> bool:
        """Release up to ``limit`` jobs; return whether there were any.

        This wakes no other workers: a worker that does not know the tasks would only hold the jobs again.
        """
        settings, keys = self._settings, self._settings.keys
        self.next_ms = now_ms + LOOK_AT_HELD_MS
        if not self._client.zcard(keys.held):
            return False
        released = [release(limit) for release in self._others]
        known = [Reason(Kind.TASK, task.name) for task in all_tasks()]
        keyring = get_keyring()
        known += [Reason(Kind.KEY, key) for key in keyring.ids]
        # An older version may have held jobs because of the format that this one reads.
        known += [Reason(Kind.FORMAT, mark) for mark in readable_marks()]
        known += self._fitting() + self._of_codecs()
        if get_handler(settings.name) is not None:
            known.append(Reason(Kind.TASK))
        call = hold_calls.release(
            keys,
            known,
            limit=limit,
            cursor=self._cursor,
            keeps_ended=settings.keep_ended > 0,
        )
        reply = run(self._client, call)
        self._pause.note_success()
        self._cursor = reply.cursor
        released.append(Released.of(reply.released, limit, reply.cursor))
        if any(each.has_more for each in released):
            # More may be held. The next claim finds out once there is room again.
            self.next_ms = now_ms
        if reply.ends:
            job_signals.send_ends(settings.name, reply.ends)
        _log_quarantined(settings.name, reply.ends)
        return any(each.jobs for each in released)

    def _of_codecs(self) -> list[Reason]:
        """Return what is held because another codec than the queue's did not read it."""
        call = hold_calls.held_names(
            self._settings.keys, limit=MOST_SHAPES, only=Kind.CODEC
        )
        own = Reason(Kind.CODEC, self._settings.payload_codec.name)
        return [reason for reason in run(self._client, call).counts if reason != own]

    def _fitting(self) -> list[Reason]:
        """Return the calls that are held because other code did not take the arguments, and ours does."""
        calls: dict[Reason, int] = {}
        # Of the first, some may have been held for too long; `release` looks at those behind the cursor.
        for cursor in {b"", self._cursor}:
            call = hold_calls.held_names(
                self._settings.keys,
                limit=MOST_SHAPES,
                only=Kind.CALL,
                cursor=cursor,
            )
            calls |= run(self._client, call).counts
        return [reason for reason in calls if _takes_call_held_as(reason.name)]


def _log_quarantined(queue: str, ends: Sequence[EndedHere]) -> None:
    """Log a line for each task and reason."""
    ids: dict[tuple[str, str], list[str]] = {}
    for end in ends:
        ids.setdefault((end.task, end.why), []).append(f"{queue}:{end.token}")
    for (task, why), its in ids.items():
        more = len(its) - MOST_IDS
        logger.error(
            "queue %s: no worker came in time that can run %s, so these jobs were quarantined: %s%s. Reason: %s",
            queue,
            show(task) if task else "a job without a task",
            ", ".join(its[:MOST_IDS]),
            f" and {more} more" if more > 0 else "",
            why,
        )


def _takes_call_held_as(name: str) -> bool:
    shape = hold_calls.Shape.of_held(name)
    task = None if shape is None else find_task(shape.task)
    return (
        shape is not None
        and task is not None
        and task.fits(range(shape.positional), dict.fromkeys(shape.names))
    )
