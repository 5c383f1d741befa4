"""Waiting for a list to hold something, without taking anything out of it.

``BLMOVE q q LEFT LEFT`` blocks until the list has an element, and puts it back where it was. It is a peek: no wait can
lose what it waits for. It returns at once while the list has an element, so arm it only after a claim found nothing.
"""

import threading
from collections.abc import Callable

from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import monotonic_ms
from django_delayq.logs import get_log
from django_delayq.transport.primary import pause_ms
from django_delayq.waiting.background import Background
from django_delayq.waiting.connection import (
    DedicatedConnection,
    Waker,
    wait_readable,
)
from django_delayq.waiting.trouble import Trouble

logger = get_log(__name__)

#: How long one call has the server wait for somebody who takes what comes.
BLOCK_MS = 2_000
#: The same for a watch, whose owner looks by itself now and then: an idle worker asks little.
WATCH_MS = 5_000
#: The answer may take this much longer; then the connection counts as dead.
DEADLINE_MS = 1_500
#: The pause after an error (no memory for BLMOVE, no right to it, no server). Meanwhile the alarm's cap has us look.
BACKOFF_MS = 1_000


class Peek:
    """A peek at one list, in flight on a connection of its own."""

    def __init__(self, client: Redis, key: str) -> None:
        self.key = key
        self._connection = DedicatedConnection(
            client, deadline_s=(WATCH_MS + DEADLINE_MS) / 1000, key=key
        )
        #: Without an answer by then the connection is dead; None while nothing is in flight.
        self.deadline_ms: float | None = None

    def begin(self, wait_ms: float = BLOCK_MS) -> None:
        """Ask the server to answer as soon as the list holds something, or after ``wait_ms``.

        The answer takes `WATCH_MS` at most. A call that is in flight already stays as it was sent.
        """
        is_new = self._connection.connect()
        if self.deadline_ms is not None and not is_new:
            return
        if not is_new and self._is_stale():
            self._connection.close()
            self._connection.connect()
        wait_ms = min(max(wait_ms, 1), WATCH_MS)
        # To the millisecond and never 0, which would wait for ever.
        self._connection.send(
            "BLMOVE", self.key, self.key, "LEFT", "LEFT", f"{wait_ms / 1000:.3f}"
        )
        self.deadline_ms = monotonic_ms() + wait_ms + DEADLINE_MS

    def _is_stale(self) -> bool:
        # The server may have gone and come back since the last answer.
        try:
            return self._connection.has_reply()
        except RedisConnectionError:
            return True

    def is_answered(self) -> bool:
        """Return whether `finish` has something to read.

        Raises:
            redis.exceptions.TimeoutError: there should have been an answer for a while.
            redis.exceptions.ConnectionError: the other end has closed the connection.
        """
        if self._connection.has_reply():
            return True
        if self.deadline_ms is not None and monotonic_ms() > self.deadline_ms:
            raise RedisTimeoutError(f"no answer to BLMOVE within {DEADLINE_MS} ms")
        return False

    def finish(self) -> bool:
        """Read the answer: whether the list held something."""
        answer = self._connection.read()
        self.deadline_ms = None
        return answer is not None

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        """Call it off, by closing the connection; it can begin again."""
        self.deadline_ms = None
        self._connection.close()


class DestinationWatch:
    """Watches lists in a thread of its own, over one connection each, and calls back once when one holds something.

    The thread starts with the first `arm` and ends with `stop`. In a forked child nothing is armed.
    """

    def __init__(self, client: Redis, *, name: str = "delayq-watch") -> None:
        self._background = Background(lambda: _Watching(client), name=name)

    def arm(self, key: str, callback: Callable[[], None]) -> None:
        """Call back once, in the watch's thread, as soon as the list holds something.

        If it is armed again before that, the later callback replaces the earlier one. Errors are logged and the watch
        continues; until it works again, the caller relies on its cap.
        """
        with self._background.lock:
            self._background.ensure().arm(key, callback)

    def disarm(self, key: str) -> None:
        """Don't call back any more. Its connection stays for the next `arm`."""
        with self._background.lock:
            if (watching := self._background.actor) is not None:
                watching.disarm(key)

    def forget(self, key: str) -> None:
        """Disarm, and close the connection: nobody waits for this list any more."""
        with self._background.lock:
            if (watching := self._background.actor) is not None:
                watching.forget(key)

    def stop(self) -> None:
        """End the thread and its connections. Idempotent."""
        self._background.stop()


class _Watching:
    """The work of the thread. `arm`, `disarm`, `forget` and `end` are called by others."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._backoff_ms = pause_ms(client, BACKOFF_MS)
        self._waker = Waker()
        self._is_ended = False
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._armed: dict[str, Callable[[], None]] = {}
        self._forgotten: set[str] = set()
        # Owned by the thread.
        self._peeks: dict[str, Peek] = {}
        self._not_before_ms: dict[str, float] = {}
        self._troubles: dict[str, Trouble] = {}

    def arm(self, key: str, callback: Callable[[], None]) -> None:
        with self._lock:
            self._armed[key] = callback
            self._forgotten.discard(key)
        self._waker.wake()

    def disarm(self, key: str) -> None:
        with self._lock:
            self._armed.pop(key, None)

    def forget(self, key: str) -> None:
        with self._lock:
            self._armed.pop(key, None)
            self._forgotten.add(key)
        self._waker.wake()

    def end(self) -> None:
        self._is_ended = True
        self._waker.wake()

    def run(self) -> None:
        while not self._is_ended:
            self._waker.clear()
            with self._lock:
                armed, forgotten = list(self._armed), self._forgotten
                self._forgotten = set()
            for key in forgotten:
                self._close(key)
                self._troubles.pop(key, None)
            # A peek that was disarmed still has its answer read: unread, it would end every wait.
            for key in {*armed, *(peek.key for peek in self._in_flight())}:
                self._look_at(key, is_armed=key in armed)
            wait_readable([self._waker, *self._in_flight()], self._until_next_s(armed))
        for peek in self._peeks.values():
            peek.close()
        self._waker.close()

    def _look_at(self, key: str, *, is_armed: bool) -> None:
        """Begin a peek, or take note of its answer."""
        if monotonic_ms() < self._not_before_ms.get(key, 0):
            return
        try:
            peek = self._peeks.get(key)
            if peek is None:
                peek = self._peeks[key] = Peek(self._client, key)
            if is_armed:
                peek.begin(WATCH_MS)
            if peek.is_answered():
                is_filled = peek.finish()
                # Not before it is read: the answer may be an error.
                self._troubles.pop(key, None)
                if is_filled:
                    self._call_back(key)
                elif is_armed:
                    peek.begin(WATCH_MS)
        except Exception as error:
            self._troubles.setdefault(key, Trouble(logger, is_outage_told=False)).note(
                error, f"cannot watch {key!r}", again_ms=round(self._backoff_ms)
            )
            self._close(key)
            self._not_before_ms[key] = monotonic_ms() + self._backoff_ms

    def _call_back(self, key: str) -> None:
        with self._lock:
            callback = self._armed.pop(key, None)
        if callback is None:
            return  # disarmed meanwhile
        try:
            callback()
        except Exception:
            # One bad callback must not end the watch of other lists.
            logger.exception("the callback for %r failed", key)

    def _in_flight(self) -> list[Peek]:
        return [peek for peek in self._peeks.values() if peek.deadline_ms is not None]

    def _until_next_s(self, armed: list[str]) -> float | None:
        """How long until a dead connection is noticed, or a list looked at again after an error."""
        now_ms = monotonic_ms()
        moments = [self._not_before_ms.get(key, 0) for key in armed]
        moments = [moment for moment in moments if moment > now_ms]
        moments += [peek.deadline_ms or now_ms for peek in self._in_flight()]
        return max(0, min(moments) - now_ms) / 1000 + 0.001 if moments else None

    def _close(self, key: str) -> None:
        self._not_before_ms.pop(key, None)
        if (peek := self._peeks.pop(key, None)) is not None:
            peek.close()
