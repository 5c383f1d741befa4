"""Whether the worker that runs a job is to end: asked by long jobs, which may also wait for it."""

import asyncio
import math
import threading
from contextvars import ContextVar

from django_delayq.clock import monotonic_ms

#: A thread waits in pieces of this length, as no time limit can interrupt it inside one.
WAIT_SLICE_S = 0.5


class Stop:
    """Tells the jobs of one worker process that the process is to end. It can be set once, by any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        # Each waiting coroutine has one, with its loop. The loops add and remove, `set` takes a copy.
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()
        # The interpreter makes the copy in one step.
        for event, loop in self._waiters.copy().items():
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                # The loop is closed, and with it the coroutine has gone.
                continue

    def wait(self, timeout_ms: float) -> bool:
        """Block until it is set, for ``timeout_ms`` at most; return whether it is."""
        until_ms = monotonic_ms() + timeout_ms
        while not self._event.is_set():
            left_s = (until_ms - monotonic_ms()) / 1000
            if left_s <= 0:
                return False
            self._event.wait(min(left_s, WAIT_SLICE_S))
        return True

    async def wait_async(self, timeout_ms: float) -> bool:
        """`wait` on the event loop."""
        event = asyncio.Event()
        self._waiters[event] = asyncio.get_running_loop()
        try:
            # Looked at only now: from here on, `set` knows the waiter.
            if not self.is_set:
                timeout_s = None if timeout_ms == math.inf else timeout_ms / 1000
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiters[event]
        return self.is_set


#: Nobody sets it.
NEVER = Stop()
#: The stop of the worker in whose thread or coroutine this runs. It is set once for each thread and event loop, so that
#: it costs no job anything.
running_stop: ContextVar[Stop] = ContextVar("django_delayq_running_stop", default=NEVER)
