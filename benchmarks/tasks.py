"""What the workers under measurement run."""

import mmap
import os
import struct
import time

from django_delayq import current_job, delayed_task

try:
    from django_delayq import Limit
except ImportError:
    # An earlier commit, which `compare` measures with these tasks, has no limits.
    Limit = None  # type: ignore[assignment, misc]


@delayed_task
def noop(number: int) -> None:
    """Do nothing, on a queue with Redisson's list."""


@delayed_task(queue="flat")
def noop_flat(number: int) -> None:
    """Do nothing, on a queue without it."""


@delayed_task(queue="listed")
def noop_listed(number: int) -> None:
    """Do nothing, on a queue that keeps Redisson's list, whatever the default."""


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
def tell_flat(number: int, due_ms: int) -> None:
    """Write down how late it is, ms, in its place of a file of doubles; without a system call, which a no-op has not."""
    global _marks
    late_ms = time.time() * 1000 - due_ms
    if _marks is None:
        with open(os.environ["DELAYQ_BENCH_MARKS"], "r+b") as file:
            _marks = mmap.mmap(file.fileno(), 0)
    struct.pack_into("=d", _marks, 8 * number, late_ms)


_marks: mmap.mmap | None = None


@delayed_task(queue="flat")
def stamp(number: int) -> None:
    """Write down when it ran, by the clock that all processes share, seconds."""
    now = time.monotonic()
    with open(os.environ["DELAYQ_BENCH_MARKS"], "w") as marks:
        marks.write(f"{now:.6f}")


@delayed_task(queue="flat")
def tell_late(due_ms: int | None = None) -> None:
    """Write down how late it is, ms, at the end of a file; without an argument, the job is of a periodic schedule."""
    now_ms = time.time() * 1000
    job = current_job()
    if due_ms is None and job is not None and job.occurrence is not None:
        kind, late_ms = "schedule", now_ms - job.occurrence.timestamp() * 1000
    else:
        kind, late_ms = "job", now_ms - (due_ms or 0)
    with open(os.environ["DELAYQ_BENCH_MARKS"], "a") as marks:
        marks.write(f"{kind} {late_ms:.3f}\n")


if Limit is not None:

    @delayed_task(
        queue="flat",
        limit=Limit("bench", concurrency=1, key=lambda number: number % 1_000),
    )
    def noop_of_a_key(number: int) -> None:
        """Do nothing, and never beside another job of the key."""
