"""Time limits of what runs in threads: a timer, and an exception that its thread raises in another thread.

Python raises that at the thread's next step of Python code. A thread that stays in C code, or catches everything, does
not react: then the caller has to replace its process.
"""

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.decisions import Decision
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker.timer")

#: A task that still runs so long after its time limit costs its process: a thread cannot be killed. In seconds.
STUCK_AFTER_S = 5.0

#: A codec that takes longer than this to decode a payload will never finish.
READING_LIMIT_S = 300.0
#: The name of that step in messages.
READING = "decoding its payload"


class Timer:
    """Calls functions on a thread of its own, each once, and never early. Any thread may use it.

    As few functions wait as jobs run, so it finds the next one by looking at all of them. It looks when one is due or
    a new one comes before all others; in between, its thread sleeps.

    In a forked child nothing waits, and the first call of `call_later` starts another thread.

    Warning: a function that takes long delays all others.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._start_over()
        _timers.add(self)

    def _start_over(self) -> None:
        # A finaliser that cancels may run wherever this thread holds the lock. In a forked child, another thread of
        # the parent may hold the old one.
        self._lock = threading.RLock()
        # The lock guards all that follows.
        self._changed = threading.Condition(self._lock)
        # When each function is due, by `time.monotonic`.
        self._due: dict[Callable[[], object], float] = {}
        # When the thread looks by itself.
        self._looks_s = math.inf
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call the function after a delay, unless `cancel` takes it back. One that waits already waits for the new time.

        Its return value is ignored, and an exception is logged. A stopped timer calls nothing.
        """
        due_s = time.monotonic() + delay_s
        with self._lock:
            if self._is_stopped:
                return
            if self._thread is None:
                self.start()
            self._due[function] = due_s
            if due_s < self._looks_s:
                self._changed.notify()

    def cancel(self, function: Callable[[], object]) -> None:
        """Forget a function, and everything that it refers to, unless it has been called."""
        with self._lock:
            self._due.pop(function, None)

    def start(self) -> None:
        """Start the thread now, rather than with the first function."""
        with self._lock:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            # If there are too many threads, this raises, and the next call tries again.
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """End the thread once the current call has returned."""
        with self._lock:
            self._is_stopped = True
            self._due.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (function := self._wait()) is not None:
            try:
                function()
            except BaseException:
                # Even SystemExit is caught: it would end the thread without a word.
                logger.exception("%r failed in timer %r", function, self._name)
            # Otherwise the function would live until the next one is due.
            del function

    def _wait(self) -> Callable[[], object] | None:
        """Sleep until a function is due, and take it. None: the thread has to end."""
        with self._lock:
            while not self._is_stopped:
                # Both searches run no Python, so that no finaliser can change what they search. Behind each, one may
                # cancel what was found.
                self._looks_s = min(self._due.values(), default=math.inf)
                left_s = self._looks_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                    continue
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is None or self._due.get(first) != self._looks_s:
                    continue
                if self._due.pop(first, None) is not None:
                    return first
        return None


_timers: weakref.WeakSet[Timer] = weakref.WeakSet()


def _start_over_in_child() -> None:
    for timer in _timers:
        timer._start_over()


os.register_at_fork(after_in_child=_start_over_in_child)


def _strike(thread_id: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(TimeLimitExceeded)
    )


class ThreadTimeLimit:
    """Runs one function, for a limited time, in the thread that makes this object and calls `run`."""

    def __init__(
        self,
        timer: Timer,
        limit_s: float,
        *,
        name: str,
        stuck: Callable[[], None],
    ) -> None:
        self._timer = timer
        self._limit_s = limit_s
        self._name = name
        self._stuck = stuck
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._is_over = False
        self._is_stuck = False
        #: The exception was raised, so it may have broken off whatever ran.
        self.has_struck = False

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the function and return what it returns.

        A function that catches the exception has `STUCK_AFTER_S` to return a value or to raise a decision.

        Raises:
            TimeLimitExceeded: the function took too long.
        """
        try:
            try:
                with self._lock:
                    self._timer.call_later(self._limit_s, self._strike)
                value = function(*args, **kwargs)
            finally:
                self._end()
        except BaseException as error:
            # The strike may have hit the finally above before it did anything.
            self._end()
            if not self.has_struck or (
                isinstance(error, Decision) and not self._is_stuck
            ):
                raise
            exceeded = exceeds(self._name, self._limit_s)
            if isinstance(error, TimeLimitExceeded):
                raise exceeded.with_traceback(error.__traceback__) from None
            raise exceeded from error
        if self._is_stuck:
            raise exceeds(self._name, self._limit_s)
        return value

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            if self.has_struck:
                # A strike that came too late hits here, and not what this thread does next. Taking it back would do as
                # well, but then Python 3.11 and 3.12 look for it at each step of every thread, for ever.
                with suppress(TimeLimitExceeded):
                    _strike(self._thread_id)
                    while True:
                        pass
        self._timer.cancel(self._report_stuck if self.has_struck else self._strike)

    def _strike(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self.has_struck = True
            _strike(self._thread_id)
            self._timer.call_later(STUCK_AFTER_S, self._report_stuck)

    def _report_stuck(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_stuck = True
        self._stuck()


def exceeds(name: str, limit_s: float) -> TimeLimitExceeded:
    """Return the error for a task that took too long."""
    return TimeLimitExceeded(f"{name} ran longer than its time limit of {limit_s:g} s")
