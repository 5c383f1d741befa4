"""What the workers under measurement run."""

import os

from django_delayq import delayed_task


@delayed_task
def noop(number: int) -> None:
    """Do nothing, on a queue with Redisson's list."""


@delayed_task(queue="flat")
def noop_flat(number: int) -> None:
    """Do nothing, on a queue without it."""


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
