"""The time limit of a function that runs in a thread: an exception that another thread raises in it.

Python raises it at the thread's next step of Python code. A thread that stays in C code, or catches everything, does
not react: then the caller has to replace its process.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.jobs.decisions import Decision
from django_delayq.worker.timer import Timer

#: A task that still runs so long after its time limit costs its process: a thread cannot be killed. In seconds.
STUCK_AFTER_S = 5.0

#: A codec that takes longer than this to decode a payload will never finish.
READING_LIMIT_S = 300.0
#: The name of that step in messages.
READING = "decoding its payload"


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
