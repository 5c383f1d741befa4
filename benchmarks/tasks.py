"""What the workers under measurement run."""

from django_delayq import delayed_task


@delayed_task
def noop(number: int) -> None:
    """Do nothing, on a queue with Redisson's list."""


@delayed_task(queue="flat")
def noop_flat(number: int) -> None:
    """Do nothing, on a queue without it."""
