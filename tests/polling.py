"""Time in tests: conditions to wait for, and a clock that moves only when told."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Between two looks at the condition, at first and at most: what takes long is looked at less often, or those who wait
#: would take the processor from what they wait for.
POLL_S = 0.002
LONGEST_POLL_S = 0.02
#: A process that is started on a busy machine may take this long to say something.
PATIENCE_S = 60.0


def wait_until(
    predicate: Callable[[], T], *, description: str, timeout: float = PATIENCE_S
) -> T:
    """Call the predicate until it returns something true, and return that.

    Raises:
        AssertionError: still false after ``timeout`` seconds; tells the description and the
            last value.
    """
    begun = time.monotonic()
    while True:
        # Asked before, so that a pause of this process cannot end the wait without a last look.
        waited_s = time.monotonic() - begun
        value = predicate()
        if value:
            return value
        if waited_s >= timeout:
            raise AssertionError(
                f"not within {timeout} s: {description} (last value: {value!r})"
            )
        time.sleep(_pause_s(waited_s))


def _pause_s(waited_s: float) -> float:
    return min(max(POLL_S, waited_s / 10), LONGEST_POLL_S)


def takes_less_than(
    seconds: float, act: Callable[[], object], *, tries: int = 5
) -> bool:
    """Return whether one of some calls ends so soon: a busy machine makes one slow, a fault all of them."""
    for _ in range(tries):
        begun = time.monotonic()
        act()
        if time.monotonic() - begun < seconds:
            return True
    return False


async def await_until(
    predicate: Callable[[], T | Awaitable[T]],
    *,
    description: str,
    timeout: float = PATIENCE_S,
) -> T:
    """Do as `wait_until` without blocking the event loop; the predicate may be a coroutine function."""
    begun = time.monotonic()
    while True:
        waited_s = time.monotonic() - begun
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if waited_s >= timeout:
            raise AssertionError(
                f"not within {timeout} s: {description} (last value: {value!r})"
            )
        await asyncio.sleep(_pause_s(waited_s))


class FakeClock:
    """Stand in for `clock.monotonic_ms` or `clock.epoch_ms`: call it to read it."""

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> float:
        return self.now_ms

    def advance(self, ms: float) -> None:
        assert ms >= 0, "a clock does not go back"
        self.now_ms += ms
