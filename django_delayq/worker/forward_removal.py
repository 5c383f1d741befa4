"""Forwards that their queue has got, until they are removed from the queue that kept them.

They are removed only once their queue has them for good, see `kept_since`. That check opens a connection and may wait for a
replica, so a thread of its own makes it, for many forwards at once.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.core import forward_calls
from django_delayq.core import store as store_calls
from django_delayq.core.forward_calls import Forward
from django_delayq.exceptions import DelayqError
from django_delayq.faults import fault_line
from django_delayq.jobs.follow_ups import LEAST_BYTES, queue_of
from django_delayq.jobs.kept import kept_since
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.run import run

logger = get_log("django_delayq.worker")

#: The time between two checks, in ms. Less than `forwarding.FRESH_MS`, or other processes would store the forwards again.
GATHER_MS = 500.0
#: How long the thread goes on without work, in seconds.
IDLE_S = 10.0
#: Forwards that wait here for each queue. The others are read again from where they are.
MOST_STORED = 1_000
#: Forwards of one call, and about how many bytes of them.
MOST, MOST_BYTES = 200, 1 << 20


class _Kept(NamedTuple):
    """A forward that its queue has got."""

    source: QueueSettings
    forward: Forward
    #: What to add to `boottime_ms` for the clock of its queue.
    offset_ms: float


def remove(
    client: Redis,
    source: QueueSettings,
    target: QueueSettings,
    forwards: Sequence[Forward],
    *,
    now_ms: int,
) -> None:
    """Remove forwards that their queue has got. ``now_ms`` is by the clock of that queue."""
    run(client, forward_calls.remove(source.keys, forwards))
    names = [each.name for each in forwards]
    # What a queue does not forget now, it forgets after a year.
    with suppress(RedisError, OSError):
        run(client, store_calls.let_go(target.keys, names, now_ms=now_ms))


class ForwardRemoval:
    """Removes forwards that were stored.

    ``changed`` guards all of it. ``read_again`` is called for a queue that lacks what it had got, and ``wake`` when there
    is nothing left to do.
    """

    def __init__(
        self,
        changed: threading.Condition,
        read_again: Callable[[QueueSettings, str], object],
        wake: Callable[[], object],
    ) -> None:
        self._changed = changed
        self._read_again = read_again
        self._wake = wake
        self._stored: dict[str, list[_Kept]] = {}
        self._is_at_work = False
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        # The thread's own: when it may check again, and what it has logged of a queue.
        self._next_ms = 0.0
        self._problems: dict[str, str] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._stored) or self._is_at_work

    def is_full(self, queue: str) -> bool:
        """Whether there is no room for what a queue gets."""
        return len(self._stored.get(queue, ())) >= MOST_STORED

    def add(
        self,
        source: QueueSettings,
        queue: str,
        forwards: Sequence[Forward],
        offset_ms: float,
    ) -> None:
        """Take over what a queue has just stored, whose clock is ahead of `boottime_ms` by ``offset_ms``."""
        with self._changed:
            if self.is_full(queue):
                return
            self._stored.setdefault(queue, []).extend(
                _Kept(source, each, offset_ms) for each in forwards
            )
            if self._thread is not None:
                self._changed.notify_all()
                return
            thread = threading.Thread(
                target=self._work, name="delayq-forwarded", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # Whoever looks for forwards finds these again.
                logger.error("queue %s: what it got is not removed: %s", queue, error)
                self._stored.clear()
            else:
                self._thread = thread

    def stop(self, timeout_s: float) -> None:
        """Remove what is there, and end; wait ``timeout_s`` at most."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _work(self) -> None:
        while stored := self._take():
            for queue, kept in stored.items():
                try:
                    self._remove(queue, kept)
                except Exception as error:
                    self._note_error(queue, error)
                else:
                    self._problems.pop(queue, None)
            with self._changed:
                self._is_at_work = False
                self._changed.notify_all()
            self._wake()

    def _take(self) -> dict[str, list[_Kept]]:
        """Wait for work, and return it; nothing: the thread is to end."""
        changed = self._changed
        with changed:
            changed.wait_for(lambda: self._stored or self._is_stopping, IDLE_S)
            while (
                self._stored
                and not self._is_stopping
                and not any(map(self.is_full, self._stored))
                and (left_ms := self._next_ms - monotonic_ms()) > 0
            ):
                changed.wait(left_ms / 1000)
            self._next_ms = monotonic_ms() + GATHER_MS
            taken, self._stored = self._stored, {}
            self._is_at_work = bool(taken)
            if not taken:
                self._thread = None
        return taken

    def _remove(self, queue: str, kept: Sequence[_Kept]) -> None:
        """Remove forwards to one queue, those that it has for good."""
        target, client = queue_of(queue), own_clients.of_thread()
        since = kept_since(client, target, [each.forward.name for each in kept])
        has, lacking = defaultdict[str, list[Forward]](list), set[str]()
        sources = {each.source.name: each.source for each in kept}
        for each, when in zip(kept, since, strict=True):
            if when is None:
                lacking.add(each.source.name)
            else:
                has[each.source.name].append(each.forward)
        for name, forwards in has.items():
            for part in _parts(forwards):
                now_ms = round(boottime_ms() + kept[-1].offset_ms)
                remove(client, sources[name], target, part, now_ms=now_ms)
        for name in lacking:
            self._read_again(sources[name], queue)

    def _note_error(self, queue: str, error: Exception) -> None:
        """Log a new problem. The next search for forwards finds these again."""
        if self._problems.get(queue) == str(error):
            return
        self._problems[queue] = str(error)
        logger.warning(
            "queue %s has got what follows into it, but the queue before keeps it as well: %s",
            queue,
            fault_line(error) if is_of_node(error) else redact(str(error)),
            exc_info=not isinstance(error, DelayqError | RedisError | OSError),
        )


def _parts(forwards: Sequence[Forward]) -> Iterator[list[Forward]]:
    """Yield what one call may name."""
    part: list[Forward] = []
    size = 0
    for each in forwards:
        if part and (len(part) >= MOST or size >= MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(each)
        size += max(len(each.member), LEAST_BYTES)
    if part:
        yield part
