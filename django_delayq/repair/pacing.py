"""Long work on a queue in short, atomic steps: how much one takes on, and how an interrupt waits for its reply.

For commands that go through all frames of a queue that others use meanwhile.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import FrameType

from redis.client import Redis

from django_delayq.clock import monotonic_ms
from django_delayq.delivery.limits import MAX_BATCH

#: What one step should take of the server's time, ms.
TARGET_MS = 3.0
FIRST_BATCH = 64


@dataclass(slots=True)
class StepSizer:
    """Learns how many frames one step takes on."""

    batch: int = FIRST_BATCH
    #: Of a call that does nothing: distance is no reason for small steps.
    _round_trip_ms: float = inf

    def measure(self, client: Redis) -> None:
        """Find out how far away the server is."""
        for _ in range(5):
            begun_ms = monotonic_ms()
            client.ping()
            self._round_trip_ms = min(self._round_trip_ms, monotonic_ms() - begun_ms)

    def learn(self, seen: int, took_ms: float) -> None:
        """Take in how many frames a step has seen, and how long it took, the way there and back included."""
        took_ms -= self._round_trip_ms
        if took_ms > 2 * TARGET_MS:
            self.batch = max(4, min(self.batch, max(seen, 4)) // 2)
        elif seen >= self.batch and took_ms < TARGET_MS:
            self.batch = min(MAX_BATCH, self.batch * 3 // 2 + 1)


@contextmanager
def finished_first() -> Iterator[None]:
    """Let Ctrl-C wait until the reply is read: what the server has done is to be counted."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(
        handler
    ):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
