"""Jobs that run in the thread of the test as soon as they are scheduled."""

import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core.claim import Leased
from django_delayq.core.states import State
from django_delayq.core.store import NewJob
from django_delayq.jobs.decisions import Decision
from django_delayq.signals import job_scheduled
from django_delayq.testing.inline_executor import arun_attempt, run_attempt
from django_delayq.testing.recorder import ENDED, Note, Recorder, epoch_now_ms
from django_delayq.worker import job_signals
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.settle import log_end


@dataclass(eq=False, slots=True)
class _Turn:
    """The jobs that run within one call, and their first error."""

    of: "Immediate"
    to_run: deque[Note]
    error: BaseException | None = None
    is_over: bool = False


#: The turn of the job that runs here: what that job sends runs after it.
_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


class Immediate(Recorder):
    """Runs each job as soon as it was noted, in the thread that sent it; what a job sends runs after that job."""

    def __init__(self, *, raises: bool = True) -> None:
        super().__init__("immediate()")
        self._raises = raises
        # By thread: what its call has sent. No other call of the thread comes between `execute` and `conclude`.
        self._sent = threading.local()

    def clear(self) -> None:
        super().clear()
        vars(self._sent).clear()

    def noted(self, note: Note) -> None:
        turn = self._turn_here()
        if turn is not None:
            turn.to_run.append(note)
        else:
            vars(self._sent).setdefault("notes", deque()).append(note)

    def why_endless(self) -> str:
        if self._turn_here() is None:
            return super().why_endless()
        return (
            f"{self._name} runs what a job schedules after that job, so this wait within a job would never end: look at the"
            " result outside of it, or have the one job follow the other with then()"
        )

    def conclude(self, reply: Any) -> None:
        with self.afterwards():
            # What the call has sent runs at the end.
            pass

    async def aconclude(self, reply: Any) -> None:
        async with self.aafterwards():
            pass

    @contextmanager
    def afterwards(self) -> Iterator[None]:
        """Run jobs sent within this context when it ends; inside a job, after that job."""
        with self._begun() as turn:
            yield
            while turn.to_run:
                note, attempt = self._begin(turn)
                for queue, jobs in self._end(turn, note, attempt, run_attempt(attempt)):
                    job_signals.send_scheduled_here(queue, jobs)

    @asynccontextmanager
    async def aafterwards(self) -> AsyncIterator[None]:
        """`afterwards` on the event loop."""
        with self._begun() as turn:
            yield
            while turn.to_run:
                note, attempt = self._begin(turn)
                error = await arun_attempt(attempt)
                for queue, jobs in self._end(turn, note, attempt, error):
                    await sync_to_async(job_signals.send_scheduled_here)(queue, jobs)

    def _turn_here(self) -> _Turn | None:
        """Return the turn of the job that makes this call; None: none of our jobs does."""
        turn = _turn.get()
        if turn is None or turn.of is not self or turn.is_over:
            # A coroutine or a thread that a job has started may outlive the turn.
            return None
        return turn

    @contextmanager
    def _begun(self) -> Iterator[_Turn]:
        """Yield what is to run within this call; at the end, raise what the test gets to see of it."""
        if self._turn_here() is not None:
            yield _Turn(self, deque())
            return
        turn = _Turn(self, vars(self._sent).pop("notes", deque()))
        token = _turn.set(turn)
        try:
            yield turn
        finally:
            turn.is_over = True
            _turn.reset(token)
        if turn.error is not None and self._raises:
            raise _passed_on(turn.error)

    def _begin(self, turn: _Turn) -> tuple[Note, Attempt]:
        note = turn.to_run.popleft()
        note.state = State.RUNNING
        leased = Leased(
            note.token, note.attempts, 0, note.start_ms, note.payload, False, b""
        )
        # Whatever its delay, it runs at the moment for which it was scheduled.
        offset_ms = note.start_ms - boottime_ms()
        queue = conf.get_settings().queue(note.queue)
        return note, Attempt(queue, leased, math.inf, offset_ms)

    def _end(
        self, turn: _Turn, note: Note, attempt: Attempt, error: BaseException | None
    ) -> list[tuple[str, list[NewJob]]]:
        """Take in how an attempt ended; return the jobs that its end has stored, by queue, for those who listen."""
        # That it carries jobs for another queue is no state of its own here: all are noted.
        verdict = attempt.verdict
        assert verdict is not None
        log_end(attempt)
        turn.error = turn.error or _error_of(attempt, verdict, error)
        note.state = _STATES.get(verdict, State.SCHEDULED)
        note.error, note.result = attempt.error, attempt.result
        if verdict is Verdict.RETRY:
            note.attempts += 1
        if verdict in (Verdict.RETRY, Verdict.SNOOZE):
            note.move(attempt.when, epoch_now_ms())
        stored: list[tuple[str, list[NewJob]]] = []
        if attempt.bound is not None:
            stored = [(note.queue, attempt.bound.here)]
            stored += attempt.bound.elsewhere.items()
            for queue, jobs in stored:
                for job in jobs:
                    self.note(queue, job)
        if note.batch and note.state in ENDED:
            self.note_left(note.batch)
        return stored if job_scheduled.receivers else []


def _error_of(
    attempt: Attempt, verdict: Verdict, error: BaseException | None
) -> BaseException | None:
    """Return the error of an attempt that the test gets to see."""
    if verdict in (Verdict.SUCCEED, Verdict.SNOOZE, Verdict.CANCEL):
        return None
    if isinstance(error, Decision):
        # The task has decided for itself; only that its last attempt is used up is an error.
        return attempt.exception if verdict is Verdict.BURY else None
    return error or attempt.exception or RuntimeError(attempt.message)


_STATES = {
    Verdict.SUCCEED: State.SUCCEEDED,
    Verdict.RETRY: State.RETRYING,
    Verdict.SNOOZE: State.SCHEDULED,
    Verdict.CANCEL: State.CANCELLED,
    Verdict.BURY: State.DEAD,
    Verdict.QUARANTINE: State.QUARANTINED,
    Verdict.EXPIRE: State.EXPIRED,
    Verdict.HOLD: State.HELD,
}


def _passed_on(error: BaseException) -> BaseException:
    """Return the error of a task as `schedule` can raise it.

    Those of redis-py, and time-outs, would be taken for errors of the server that the job was sent to.
    """
    if isinstance(error, OSError) or type(error).__module__.startswith("redis"):
        wrapped = RuntimeError(f"the task raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
    return error
