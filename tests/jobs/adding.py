"""Jobs for tests that look at queues from outside: by a command, or as a machine does."""

from typing import Any

from django_delayq import schedule
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand


def add(queue: str, *args: Any, delay: Any = LATER, **kwargs: Any) -> Any:
    """Schedule a job that adds two numbers."""
    return schedule(samples.add.using(queue=queue), delay, *args, **kwargs)


def add_of_each_state(queue: str, hand: Hand) -> None:
    """Leave four jobs scheduled, and one each due, running, retrying and dead."""
    for n in range(2):
        add(queue, n, delay=0)
    hand.retry(hand.take(), wait_ms=LATER * 1000)
    hand.bury(hand.take())
    add(queue, 3, delay=0)
    hand.take()
    for n in range(4):
        add(queue, n)
    add(queue, 9, delay=0)
    hand.wait_until_due(1)
