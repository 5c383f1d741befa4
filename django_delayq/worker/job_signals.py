"""Sends the signals of `django_delayq.signals` when attempts begin and end.

The signal of an end is sent before the server learns of it, so that no end is missed: a worker that dies in between
runs the job again.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import get_keyring
from django_delayq.core.claim import EndedHere
from django_delayq.core.states import State
from django_delayq.core.store import NewJob
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.caller_signals import task_of
from django_delayq.jobs.follow_ups import queue_of
from django_delayq.jobs.job import Job
from django_delayq.logs import class_name, get_log
from django_delayq.signals import (
    JobSignal,
    atell,
    job_cancelled,
    job_dead,
    job_expired,
    job_quarantined,
    job_retried,
    job_scheduled,
    job_started,
    job_succeeded,
    log_failure,
    tell,
)
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.django_connections import (
    close_connections,
    make_caches,
    take_over,
)

logger = get_log("django_delayq.worker")

#: The verdicts that have a signal. A job that is snoozed, held or given back has neither failed nor ended.
_SIGNALS: dict[Verdict | None, JobSignal] = {
    Verdict.SUCCEED: job_succeeded,
    Verdict.RETRY: job_retried,
    Verdict.BURY: job_dead,
    Verdict.EXPIRE: job_expired,
    Verdict.QUARANTINE: job_quarantined,
    Verdict.CANCEL: job_cancelled,
}


def send_started(attempt: Attempt) -> None:
    """Send `job_started`: the task is about to be called."""
    if job_started.receivers:
        _send(job_started, attempt.task, attempt.job())


async def asend_started(attempt: Attempt) -> None:
    """Do as `send_started`, on the event loop."""
    if job_started.receivers:
        await _asend(job_started, attempt.task, attempt.job())


def send_end(attempt: Attempt) -> None:
    """Send the signal of what becomes of a job, once."""
    if (told := _end(attempt)) is not None:
        signal, job, named = told
        _send(signal, attempt.task, job, **named)


async def asend_end(attempt: Attempt) -> None:
    """Do as `send_end`, on the event loop."""
    if (told := _end(attempt)) is not None:
        signal, job, named = told
        await _asend(signal, attempt.task, job, **named)


def _send(signal: JobSignal, task: object, job: Job[Any], **named: Any) -> None:
    try:
        tell(signal, task, job, **named)
    except BaseException as error:
        # SystemExit, for one: it ends neither the worker nor the job, but keeps the receivers after it from theirs.
        log_failure(signal, job, "a receiver", error)


async def _asend(signal: JobSignal, task: object, job: Job[Any], **named: Any) -> None:
    try:
        await atell(signal, task, job, **named)
    except BaseException as error:
        # A cancelled receiver cancels nothing but itself.
        here = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and here and here.cancelling():
            raise
        log_failure(signal, job, "a receiver", error)


def _end(attempt: Attempt) -> tuple[JobSignal, Job[Any], dict[str, Any]] | None:
    value, error = attempt.value, attempt.raised
    # The traceback holds the task's frames, and all that they refer to.
    attempt.value = attempt.raised = None
    verdict = attempt.verdict
    signal = _SIGNALS.get(verdict)
    # If the lease was lost, the job may run elsewhere, and what becomes of it is told there.
    if signal is None or attempt.is_told or attempt.is_lost:
        return None
    attempt.is_told = True
    if not signal.receivers:
        return None
    job = attempt.job()
    assert verdict is not None
    assert verdict.state is not None
    job.state = verdict.state
    if attempt.task is None:
        job.task = None
    named: dict[str, Any] = {"reason": attempt.message, "exception": error}
    if verdict is Verdict.SUCCEED:
        named = {"result": value}
    elif verdict in (Verdict.EXPIRE, Verdict.CANCEL):
        del named["exception"]
    elif verdict is Verdict.RETRY:
        wait_ms = attempt.wait_ms()
        named["retry_in"] = timedelta(milliseconds=wait_ms)
        now_ms = boottime_ms() + attempt.server_minus_local_ms
        job.start_time_ms = round(now_ms + wait_ms)
    if verdict in (Verdict.RETRY, Verdict.BURY) and not attempt.is_unrun:
        job.attempts += 1
    return signal, job, named


#: The most signals that wait for the thread, and the most bytes of what they are about.
MOST_WAITING, WAITING_BYTES = 10_000, 1 << 24
#: Between two lines of the log about signals that were dropped.
REPORT_MS = 10_000


class _Waiting(NamedTuple):
    """A call that sends signals: how many signals it sends, and how many bytes it holds."""

    call: Callable[[], None]
    signals: int
    size: int


class SignalThread:
    """A thread for signals that no thread of a job can send: the claim loop calls nothing of a project.

    It starts with the first signal. Receivers that are slower than the loop lose signals, because what
    waits for them is bounded.
    """

    def __init__(self) -> None:
        self._calls: deque[_Waiting] = deque()
        # What waits, that which is being told included.
        self._count = self._bytes = 0
        # Signals that were dropped and not reported, and when to report next, by `monotonic_ms`.
        self._dropped, self._report_ms = 0, 0.0
        self._lock = threading.Lock()
        self._is_busy = False
        # Made in the first thread. Others take them over, so none has to connect to a cache anew.
        self._caches: dict[str, Any] | None = None
        #: Set while no signal waits.
        self._is_idle = threading.Event()
        self._is_idle.set()

    def call(self, call: Callable[[], None], *, count: int = 1, size: int = 0) -> None:
        """Have the thread make a call that sends ``count`` signals, and holds ``size`` bytes until then.

        Without room for it, it is dropped and counted. The first one always has room.
        """
        with self._lock:
            if self._count and (
                self._count + count > MOST_WAITING or self._bytes + size > WAITING_BYTES
            ):
                self._dropped += count
                self._report(monotonic_ms())
                return
            self._calls.append(_Waiting(call, count, size))
            self._count += count
            self._bytes += size
            if self._is_busy:
                return
            self._is_busy = True
            self._is_idle.clear()
        try:
            threading.Thread(
                target=self._begin, name="delayq-job-signals", daemon=True
            ).start()
        except RuntimeError as error:
            with self._lock:
                lost = self._count
                self._calls.clear()
                self._count = self._bytes = 0
                self._is_busy = False
                self._is_idle.set()
            logger.error("%d signals are not sent: %s", lost, error)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every signal is sent, ``timeout_s`` at most; return whether it is."""
        return self._is_idle.wait(timeout_s)

    def end(self, timeout_s: float) -> None:
        """Do as `drain` at the end of the process, and log how many signals are not sent by then."""
        if self.drain(timeout_s):
            return
        with self._lock:
            self._report()
            left = self._count
        logger.error(
            "%d signals are not sent: the process ends, and their receivers have not got to them within %g s",
            left,
            timeout_s,
        )

    def _report(self, now_ms: float = math.inf) -> None:
        """Log how many signals were dropped, unless that was said a moment ago. The caller holds the lock."""
        if self._dropped and now_ms >= self._report_ms:
            logger.error(
                "%d signals are not sent: their receivers are slower than the jobs, and no more than %d signals and %d MB"
                " wait for them",
                self._dropped,
                MOST_WAITING,
                WAITING_BYTES >> 20,
            )
            self._dropped, self._report_ms = 0, monotonic_ms() + REPORT_MS

    def _begin(self) -> None:
        Context().run(self._work)

    def _work(self) -> None:
        if self._caches is None:
            self._caches = make_caches()
        else:
            take_over(self._caches)
        try:
            while (waiting := self._next()) is not None:
                try:
                    waiting.call()
                except BaseException as error:
                    logger.error(
                        "a signal is not sent: %s", class_name(error), exc_info=error
                    )
                with self._lock:
                    self._count -= waiting.signals
                    self._bytes -= waiting.size
        finally:
            close_connections()

    def _next(self) -> _Waiting | None:
        """Return the next call. If there is none, the thread ends."""
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._report()
            self._is_busy = False
            self._is_idle.set()
        return None


#: That of this process.
signal_thread = SignalThread()


def send_ends(queue: str, ends: Sequence[EndedHere]) -> None:
    """Have signals sent for jobs that a script has ended by itself."""
    if job_cancelled.receivers or job_quarantined.receivers:
        signal_thread.call(
            partial(_send_ends_here, queue, ends),
            count=len(ends),
            size=sum([len(each.task) + len(each.why) for each in ends]),
        )


def _send_ends_here(queue: str, ends: Sequence[EndedHere]) -> None:
    for each in ends:
        job: Job[Any] = Job(queue, each.token, each.task or None, [], {})
        job.state = each.state
        named: dict[str, Any] = {"reason": each.why}
        signal = job_cancelled
        if each.state is State.QUARANTINED:
            signal, named["exception"] = job_quarantined, None
        _send(signal, task_of(job), job, **named)


def send_scheduled(queue: str, jobs: Sequence[NewJob]) -> None:
    """Have signals sent for jobs that a worker has stored: those that follow one, or those of occurrences."""
    if jobs and job_scheduled.receivers:
        signal_thread.call(
            partial(send_scheduled_here, queue, jobs),
            count=len(jobs),
            size=sum([len(new.payload) for new in jobs]),
        )


def send_scheduled_here(queue: str, jobs: Sequence[NewJob]) -> None:
    """Do as `send_scheduled`, in this thread."""
    for new in jobs:
        call = envelopes.decrypted(
            envelopes.claimed_call(new.payload, queue_of(queue).payload_codec),
            new.token,
            get_keyring(),
        )
        job: Job[Any] = Job(queue, new.token, call.task, call.args, call.kwargs)
        job.take_headers(call.headers)
        job.state = State.SCHEDULED
        _send(job_scheduled, task_of(job), job)
