"""A timer for the time limits of running jobs. Nearly all of its calls are cancelled before they are due."""

import math
import os
import threading
import time
import weakref
from collections.abc import Callable

from django_delayq.logs import get_log

logger = get_log(__name__)


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
