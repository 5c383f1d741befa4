"""Takes items out of a deque that several threads share."""

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def drained(items: deque[T]) -> Iterator[T]:
    """Take the items out, one by one, until there are none. Of several threads, each item goes to one."""
    while True:
        try:
            item = items.popleft()
        except IndexError:
            return
        yield item
