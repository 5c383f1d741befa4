"""Ctrl-C and its like, at times of our choice."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_signals() -> Iterator[None]:
    """Hold back the signals that end a demo: an exception halfway through a library's code would leave things half made."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
