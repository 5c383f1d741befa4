"""The time limit of a function that runs in a thread: an exception, raised in it from outside.

Python raises it at the thread's next step of Python code. A thread that stays in C code, or catches everything, does
not react: then the caller has to replace its process.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_delayq.exceptions import TimeLimitExceeded
from django_delayq.worker.wheel import HashedWheelTimer, Timeout

#: A task that has not reacted this long after its time limit costs its process: a thread cannot be killed.
STUCK_AFTER_S = 5.0

#: A codec that has not decoded a payload by then never will.
READING_LIMIT_S = 300.0
#: What that is called in messages.
READING = "decoding its payload"

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class ThreadTimeLimit:
    """Runs one function in the thread that calls `run`, for some seconds at most."""

    def __init__(
        self,
        timer: HashedWheelTimer,
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
        #: The exception was raised, so whatever ran may have been broken off anywhere.
        self.has_struck = False
        self._timeout: Timeout | None = None

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the function and return what it returns.

        Raises:
            TimeLimitExceeded: it took too long, however it ended then.
        """
        try:
            try:
                with self._lock:
                    self._timeout = self._timer.new_timeout(
                        self._strike, self._limit_s * 1000
                    )
                value = function(*args, **kwargs)
            finally:
                self._end()
        except BaseException as error:
            # The strike may have hit the finally above, before anything of it was done.
            self._end()
            if not self.has_struck:
                raise
            exceeded = exceeds(self._name, self._limit_s)
            if isinstance(error, TimeLimitExceeded):
                raise exceeded.with_traceback(error.__traceback__) from None
            raise exceeded from error
        if self.has_struck:
            raise exceeds(self._name, self._limit_s)
        return value

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            if self.has_struck:
                # An exception that was raised too late must not strike what this thread does next.
                _raise_in_thread(ctypes.c_ulong(self._thread_id), None)
        if self._timeout is not None:
            self._timeout.cancel()

    def _strike(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self.has_struck = True
            _raise_in_thread(
                ctypes.c_ulong(self._thread_id), ctypes.py_object(TimeLimitExceeded)
            )
            try:
                self._timeout = self._timer.new_timeout(
                    self._report_stuck, STUCK_AFTER_S * 1000
                )
            except RuntimeError:
                # The timer is stopped: the process ends anyway.
                return

    def _report_stuck(self) -> None:
        with self._lock:
            if self._is_over:
                return
        self._stuck()


def exceeds(name: str, limit_s: float) -> TimeLimitExceeded:
    """Make the error of a task that took too long."""
    return TimeLimitExceeded(f"{name} ran longer than its time limit of {limit_s:g} s")
