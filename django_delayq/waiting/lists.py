"""Waiting for one of several lists to hold something, by peeks that take nothing out.

A wait that ends early is not an error, because the caller looks again. So a failure here only shortens the wait, and
the next look raises it if it still matters.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import asyncio as aio
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import monotonic_ms
from django_delayq.transport.connections import arguments_of
from django_delayq.transport.primary import pause_ms
from django_delayq.waiting.connection import wait_readable
from django_delayq.waiting.watch import BACKOFF_MS, BLOCK_MS, DEADLINE_MS, Peek

#: The server may end a wait this late. If there is time, we wait for its answer.
LATE_MS = 150


class Peeks:
    """Peeks that are kept for the next wait. One object serves any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._idle: defaultdict[str, list[Peek]] = defaultdict(list)

    def borrow(self, client: Redis, key: str) -> Peek:
        """Return a peek at a list, for this thread alone."""
        with self._lock:
            idle = self._idle[key]
            return idle.pop() if idle else Peek(client, key)

    def give_back(self, peek: Peek) -> None:
        """Keep a peek for the next wait. If it is still in flight, that wait joins it."""
        with self._lock:
            self._idle[peek.key].append(peek)

    def close(self) -> None:
        """Close the peeks that nobody uses at the moment."""
        with self._lock:
            idle, self._idle = self._idle, defaultdict(list)
        for peeks in idle.values():
            for peek in peeks:
                peek.close()


@dataclass(frozen=True, slots=True)
class WaitForAny:
    """Wait until one of some lists holds something, for ``wait_ms`` and about 2 s at most."""

    peeks: Peeks
    keys: Sequence[str]
    wait_ms: float

    def do(self, client: Redis) -> None:
        wait_for_any(client, self.peeks, self.keys, self.wait_ms)

    async def ado(self, client: aio.Redis) -> None:
        await await_any(client, self.keys, self.wait_ms)


def wait_for_any(
    client: Redis, peeks: Peeks, keys: Sequence[str], wait_ms: float
) -> None:
    """Wait until a list holds something, for ``wait_ms`` and for some `BLOCK_MS` at most."""
    end_ms = monotonic_ms() + min(wait_ms, BLOCK_MS + LATE_MS)
    borrowed = [peeks.borrow(client, key) for key in keys]
    try:
        for peek in borrowed:
            peek.begin(end_ms - monotonic_ms())
        while (left_ms := end_ms - monotonic_ms()) > 0:
            wait_readable(borrowed, left_ms / 1000)
            answered = [peek for peek in borrowed if peek.is_answered()]
            for peek in answered:
                peek.finish()
            if answered:
                return
    except (RedisError, OSError):
        # No server, no memory for BLMOVE, or no right to it: the caller looks again, without haste.
        for peek in borrowed:
            peek.close()
        most_ms = pause_ms(client, BACKOFF_MS)
        time.sleep(max(0, min(end_ms - monotonic_ms(), most_ms)) / 1000)
    except BaseException:
        # An interrupt may have come between what a peek sent and its note of that.
        for peek in borrowed:
            peek.close()
        raise
    finally:
        for peek in borrowed:
            peeks.give_back(peek)


async def await_any(client: aio.Redis, keys: Sequence[str], wait_ms: float) -> None:
    """`wait_for_any` on an asyncio client, whose pool lends a connection for each list."""
    begun_ms = monotonic_ms()
    wait_ms = max(1, min(wait_ms, BLOCK_MS, _patience_ms(client)))
    execute: Any = client.execute_command
    waits = [
        asyncio.ensure_future(
            execute("BLMOVE", key, key, "LEFT", "LEFT", f"{wait_ms / 1000:.3f}")
        )
        for key in keys
    ]
    try:
        # With a deadline, because a client that retries would wait much longer.
        done, _ = await asyncio.wait(
            waits,
            timeout=(wait_ms + DEADLINE_MS) / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if any(isinstance(wait.exception(), RedisError | OSError) for wait in done):
            left_ms = wait_ms - (monotonic_ms() - begun_ms)
            most_ms = pause_ms(client, BACKOFF_MS)
            await asyncio.sleep(max(0, min(left_ms, most_ms)) / 1000)
    finally:
        for wait in waits:
            # Not awaited: a wait that ignores the cancellation ends with its BLMOVE.
            wait.cancel()
            _ending.add(wait)
            wait.add_done_callback(_end)


#: The event loop itself keeps only weak references to its tasks.
_ending: set[asyncio.Future[Any]] = set()


def _end(wait: asyncio.Future[Any]) -> None:
    _ending.discard(wait)
    if not wait.cancelled():
        wait.exception()  # asyncio reports an exception that nobody has looked at


def _patience_ms(client: aio.Redis) -> float:
    """Return how long a wait may be before the client gives up its connection."""
    timeout_s = arguments_of(client).get("socket_timeout")
    return float("inf") if timeout_s is None else timeout_s * 1000 / 2
