"""What the workers under measurement run."""

import os
import struct
import time

from django_delayq import delayed_task


@delayed_task
def noop(number: int) -> None:
    """Do nothing, on a queue with Redisson's list."""


@delayed_task(queue="flat")
def noop_flat(number: int) -> None:
    """Do nothing, on a queue without it."""


@delayed_task(queue="listed")
def noop_listed(number: int) -> None:
    """Do nothing, on a queue that keeps Redisson's list whatever the default is."""


@delayed_task
def mark(number: int) -> None:
    """Write down that it ran: nine bytes at the end of a file."""
    fd = os.open(os.environ["DELAYQ_BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b"%08d\n" % number)
    finally:
        os.close(fd)


@delayed_task(queue="flat")
def mark_flat(number: int) -> None:
    """Do the same on a queue without Redisson's list."""
    mark(number)


@delayed_task(queue="flat")
def tell_flat(due_ms: int) -> None:
    """Write down how late it is, ms: a double at the end of a file."""
    global _marks
    late_ms = time.time() * 1000 - due_ms
    if _marks is None:
        _marks = os.open(os.environ["DELAYQ_BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)
    os.write(_marks, struct.pack("=d", late_ms))


_marks: int | None = None
