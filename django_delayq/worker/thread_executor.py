"""Where sync functions run: in a fixed number of threads.

An executor takes attempts, and hands each to ``done`` when it has an outcome, whatever happens. It treats database
connections as Django treats them around a request.
"""

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Any

from django_delayq.jobs.context import running_job
from django_delayq.jobs.contexts import restored, warm
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.exception_text import class_name
from django_delayq.jobs.job import Job
from django_delayq.jobs.middleware import Middleware
from django_delayq.jobs.progress_report import running_report
from django_delayq.jobs.stop import Stop, running_stop
from django_delayq.logs import get_log
from django_delayq.signals import heard
from django_delayq.worker import job_signals, time_limit
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.django_connections import (
    close_connections,
    database_use,
    make_caches,
)
from django_delayq.worker.operating_system import end_child
from django_delayq.worker.payload import Read, read, read_if_quick
from django_delayq.worker.time_limit import READING, ThreadTimeLimit, Timer

logger = get_log("django_delayq.worker")

#: Put in the queue of the threads, this asks for a sign of life.
_SIGN = object()


class _Handover(deque[Any]):
    """Items for threads, in order. The thread that became idle last takes the next: its memory is still cached.

    No lock guards it: each step on a deque or a list is one step of the interpreter.
    """

    def __init__(self) -> None:
        super().__init__()
        # One lock for each idle thread, held until the thread is woken.
        self._idle: list[Lock] = []

    def wake(self) -> None:
        """Wake as many idle threads as there are items."""
        for _ in range(len(self)):
            try:
                bell = self._idle.pop()
            except IndexError:
                # Busy threads look for items before they become idle.
                return
            bell.release()

    def get(self, bell: Lock) -> Any:
        """Wait for an item and take it. ``bell`` is the caller's own lock, and held."""
        while True:
            try:
                return self.popleft()
            except IndexError:
                self._idle.append(bell)
            if self:
                # An item may have been added before we counted as idle, so that nobody was woken for it.
                try:
                    self._idle.remove(bell)
                    continue
                except ValueError:
                    # Another thread is about to wake us.
                    pass
            bell.acquire()


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The same for both executors of a process: objects that they use, and functions that they call."""

    timer: Timer
    #: Notifies the jobs when the process is to end.
    stop: Stop
    #: Takes each attempt that has an outcome.
    done: Callable[[Attempt], None]
    #: Takes an attempt that ignores its time limit.
    stuck: Callable[[Attempt], None]
    #: Called when a thread or the loop ends that should not: from then on fewer jobs run than are claimed.
    died: Callable[[str], None]
    #: Takes an attempt of a thread that turns out to belong on the event loop.
    found_async: Callable[[Attempt], None]
    #: Goes around each call; None: nothing does.
    around: Middleware | None = None
    #: Takes how far a running job is.
    report: Callable[[Attempt, bytes], None] = lambda attempt, stored: None


def job_within(attempt: Attempt, call: Callable[[], Any]) -> Job[Any]:
    """Return the handle that middleware gets, which `current_job` returns from now on."""
    job = attempt.job(call)
    running_job.set(lambda: job)
    return job


def read_in_thread(shared: Shared, attempt: Attempt) -> Read | BaseException:
    """Read an attempt's payload in this thread, within a time limit: a codec may hang."""

    def reading() -> Read | BaseException:
        result = read(attempt.queue, attempt.leased)
        if limit.has_struck and isinstance(result, BaseException):
            # The attempt caught the exception of this thread. The limit has the message for it.
            raise result
        return result

    limit = ThreadTimeLimit(
        shared.timer,
        time_limit.READING_LIMIT_S,
        name=READING,
        stuck=lambda: shared.stuck(attempt),
    )
    try:
        result: Read | BaseException = limit.run(reading, (), {})
    except BaseException as error:
        return error
    return result


class ThreadExecutor:
    """Runs sync tasks in a fixed number of threads."""

    what = "the queue of the threads"

    def __init__(self, threads: int, shared: Shared) -> None:
        """Make the threads; `start` starts them."""
        self.size = threads
        self._shared = shared
        # Each job asks for these.
        self._done, self._around = shared.done, shared.around
        self._is_closed = False
        self._pid = os.getpid()
        # Holds attempts, _SIGN, and None to end a thread.
        self._queue = _Handover()
        #: Have idle threads take what was submitted.
        self.wake = self._queue.wake
        self._threads = [
            threading.Thread(
                target=self._work, args=(i,), name=f"delayq-task-{i}", daemon=True
            )
            for i in range(threads)
        ]
        #: The attempt that each thread holds; each thread writes only its own place.
        self._held: list[Attempt | None] = [None] * threads
        # What threads held when they ended, by their number.
        self._orphans: dict[int, Attempt] = {}
        # Set by the watchdog.
        self.is_stuck = False
        self._is_asked = self._has_answered = False

    def start(self) -> None:
        """Start the threads.

        Raises:
            RuntimeError: the machine gives no more threads.
        """
        for thread in self._threads:
            thread.start()

    def orphans(self) -> list[Attempt]:
        """Return the attempts that dead threads held: nothing will end them."""
        return list(self._orphans.values())

    def attempts(self) -> list[Attempt]:
        """Return an empty list: a thread that holds an attempt counts as alive, and waiting attempts are given back."""
        return []

    def has_shown_life(self) -> bool:
        """Return whether all threads are busy, or an idle one has answered since the last call; ask one again."""
        frames = sys._current_frames()
        for i, thread in enumerate(self._threads):
            if thread.ident not in frames and not self._is_closed:
                # Python code cannot end a thread like this; C code can.
                self._bury(i, RuntimeError())
        if self._is_closed or None not in self._held:
            return True
        has_answered, self._has_answered = self._has_answered, False
        if not self._is_asked:
            self._is_asked = True
            self._queue.append(_SIGN)
            self._queue.wake()
        return has_answered

    def submit(self, attempt: Attempt) -> None:
        """Queue an attempt until `wake` is called. A thread that wakes before that would only wait for us."""
        self._queue.append(attempt)

    def queued(self) -> int:
        """How many attempts were submitted and not begun."""
        # A request for a sign of life is not an attempt. If a thread has taken it and not answered yet, one attempt
        # goes uncounted for a moment: the one that this thread takes next.
        size = len(self._queue)
        return size - 1 if size and self._is_asked else size

    def take_back(self) -> list[Attempt]:
        """Return the attempts that were not begun, in order."""
        attempts: list[Attempt] = []
        while True:
            try:
                # This never waits, because the threads take from the same queue.
                attempt = self._queue.popleft()
            except IndexError:
                return attempts
            if attempt is _SIGN:
                self._is_asked = False
            elif attempt is not None:
                attempts.append(attempt)

    def close(self) -> list[Attempt]:
        """Begin nothing more; return the attempts that were not begun."""
        self._is_closed = True
        return self.take_back()

    def stop(self, timeout_s: float) -> None:
        """End the idle threads, so that they close their database connections; wait ``timeout_s`` at most."""
        self.close()
        for _ in self._threads:
            self._queue.append(None)
        self._queue.wake()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self, index: int) -> None:
        running_stop.set(self._shared.stop)
        running_report.set(self._shared.report)
        make_caches()
        if self._around is not None:
            warm(self._around.travellers)
        get, held = self._queue.get, self._held
        bell = Lock()
        bell.acquire()
        try:
            while (attempt := get(bell)) is not None and not self._is_closed:
                if attempt is _SIGN:
                    self._is_asked, self._has_answered = False, True
                    continue
                held[index] = attempt
                context = None
                try:
                    # After a quick read, `may_start` looks at the lease. A read that may take longer checks the lease
                    # first.
                    call = read_if_quick(attempt.queue, attempt.leased)
                    if call is None and attempt.holds_lease():
                        call = read_in_thread(self._shared, attempt)
                    task = None if call is None else attempt.take(call)
                    if task is None:
                        pass
                    elif task.is_async:
                        held[index] = None
                        self._shared.found_async(attempt)
                        continue
                    elif attempt.may_start():
                        # What a task activates, a language or a variable of its own, ends with it.
                        context = copy_context()
                        context.run(self._run, attempt, task)
                except BaseException as error:
                    # This is our own fault, but the thread must go on, and the job must have an end.
                    if attempt.verdict is None:
                        attempt.fail(error)
                    logger.error(
                        "job %s: the worker failed",
                        attempt.id,
                        exc_info=error,
                        secrets=attempt.secrets,
                    )
                if heard.attempts:
                    try:
                        (context or copy_context()).run(self._send_end, attempt)
                    except BaseException as error:
                        # The job has its end, whether or not that can be told.
                        logger.error(
                            "job %s: its end cannot be reported",
                            attempt.id,
                            exc_info=error,
                            secrets=attempt.secrets,
                        )
                self._done(attempt)
                held[index] = None
        except BaseException as error:
            self._bury(index, error)
        finally:
            close_connections()

    def _bury(self, index: int, error: BaseException) -> None:
        """Record that this thread ends, although nothing should be able to end it."""
        attempt = self._held[index]
        if attempt is not None and attempt.verdict is None:
            self._orphans[index] = attempt
        self._shared.died(f"a thread that runs tasks has ended: {class_name(error)}")

    def _run(self, attempt: Attempt, task: TaskDefinition) -> None:
        limit: ThreadTimeLimit | None = None
        running_job.set(attempt.job)
        try:
            if database_use.has_connected:
                database_use.begin()
            if is_heard := heard.attempts:
                job_signals.send_started(attempt)
            limit_s = attempt.time_limit_s
            if limit_s is not None:
                limit = ThreadTimeLimit(
                    self._shared.timer,
                    limit_s,
                    name=task.name,
                    stuck=lambda: self._shared.stuck(attempt),
                )
            if self._around is not None:
                value = self._surrounded(self._around, attempt, task, limit)
            elif limit is None:
                value = task.function(*attempt.args, **attempt.kwargs)
            else:
                value = limit.run(task.function, attempt.args, attempt.kwargs)
            if is_heard:
                attempt.value = value
            attempt.succeed(value)
        except BaseException as error:
            # If a task raises SystemExit or KeyboardInterrupt, it ends the attempt, not the worker.
            attempt.fail(error)
        finally:
            if os.getpid() != self._pid:
                # Before it closes the parent's connections.
                end_child()
            if database_use.has_connected:
                database_use.end(was_interrupted=limit is not None and limit.has_struck)

    def _send_end(self, attempt: Attempt) -> None:
        """Tell of an attempt's end. Its receivers use the database as another task would, and not in what this one left."""
        running_job.set(attempt.job)
        try:
            if database_use.has_connected:
                database_use.begin()
            job_signals.send_end(attempt)
        finally:
            if database_use.has_connected:
                database_use.end(was_interrupted=False)

    def _surrounded(
        self,
        around: Middleware,
        attempt: Attempt,
        task: TaskDefinition,
        limit: ThreadTimeLimit | None,
    ) -> object:
        """Call a task within its contexts and middleware; its time limit counts for the middleware as well."""
        with restored(around.travellers, attempt):
            if limit is None and around.call is None:
                value = task.function(*attempt.args, **attempt.kwargs)
            else:
                call = functools.partial(task.function, *attempt.args, **attempt.kwargs)
                if around.call is not None:
                    call = functools.partial(around.call, job_within(attempt, call))
                value = call() if limit is None else limit.run(call, (), {})
        return value
