"""Paces long work on a queue: how much one short, atomic step takes on, and how an interrupt waits for its reply.

It serves commands that go through all frames of a queue while others use it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from django_delayq.core.bounds import MAX_BATCH
from django_delayq.transport.batch_size import BatchSizer

#: What the frames of one step should take of the server's time, ms.
TARGET_MS = 3.0
FIRST_BATCH = 64


def step_sizer(first: int = FIRST_BATCH) -> BatchSizer:
    """Make a sizer of steps: most of a step's time is for its frames, however far away the server is."""
    return BatchSizer(
        first=first,
        least=2,
        most=MAX_BATCH,
        target_ms=TARGET_MS,
        call_share=0.0,
        patience=2,
    )


@contextmanager
def finished_first() -> Iterator[None]:
    """Let Ctrl-C wait until the reply is read, so that what the server has done is counted."""
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
