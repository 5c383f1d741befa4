"""Bringing Redisson's list in line with ``INSERTION_LIST``: a run of short, atomic steps that may end after any of them.

For a queue whose setting was switched: `Listing.fill` puts into the list what waits and is not there, `Listing.empty`
takes out what waits anyway. Workers, producers and Java go on meanwhile; a run that was interrupted is simply started
again.
"""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.calls.batch import BatchSizer
from django_delayq.calls.call import Call
from django_delayq.calls.running import run
from django_delayq.clock import monotonic_ms
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.repair import calls
from django_delayq.repair.calls import FrameHead, FrameName, ListStep
from django_delayq.repair.pacing import finished_first, step_sizer
from django_delayq.repair.survey import (
    EMPTIED,
    LISTED,
    UNLISTED,
    Progress,
    ignore_progress,
    name_of,
    stretches,
)

#: Field of the control hash: who fills or empties the list. `_mark.lua` has it too.
HOLDER = "listing"
#: Walks of one run that fills: one finds what producers with the old setting offered meanwhile.
PASSES = 3


@dataclass(slots=True)
class Listing:
    """One run over one queue. The numbers are right after every step, also when the run was interrupted."""

    client: Redis
    keys: DeliveryKeys
    progress: Progress = ignore_progress
    #: Frames put into the list.
    filled: int = 0
    #: Frames taken out of it.
    emptied: int = 0
    #: Frames that are in the list alone, and stay: they are nowhere else.
    alone: int = 0
    #: Members that wait and are not in the list, and that no step can find: no frames, or start times that are not whole
    #: milliseconds from 0 on.
    left_out: int = 0
    steps: int = 0
    _run: str = field(default_factory=lambda: secrets.token_urlsafe(8))
    _sizer: BatchSizer = field(default_factory=step_sizer)

    def fill(self) -> None:
        """Put what waits and is not in the list there: ours in the order of arrival, then Java's by start time.

        It goes to the tail, behind what was offered since the list is kept.

        Raises:
            ListBusy: another process fills or empties this list.
        """
        with self._holding():
            # Held from before the first look: what another fills in meanwhile is no longer missing.
            self._step(calls.enlist(self.keys, (), **self._naming()))
            for _ in range(PASSES):
                missing = self._find_missing()
                self._fill(missing)
                if not missing:
                    break
            self.client.hdel(self.keys.control, EMPTIED)

    def empty(self) -> None:
        """Take what is in the list out of it; it waits on, only the timeout set knows it then.

        It ends with what was there when it began: whoever keeps the list, as Java does, pushes on.

        Raises:
            ListBusy: another process fills or empties this list.
        """
        queue = self.keys.queue
        with self._holding():
            total = left = self.client.llen(queue.delay_queue)
            while left > 0:
                batch = min(self._sizer.size, left)
                step = self._step(
                    calls.delist(self.keys, batch=batch, **self._naming())
                )
                self.emptied += step.seen - step.listed
                self.alone += step.listed
                # Workers take frames out, too; what stays was put to the tail.
                there = self.client.llen(queue.delay_queue)
                left = min(left - step.seen, there - self.alone)
                self.progress("emptying the list", total - max(left, 0), total)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Begin, and let others begin when this has ended; where the server is lost, they may in half a minute."""
        try:
            yield
        except RedisError:
            raise
        except BaseException:
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        holder: Any = self.client.hget(self.keys.control, HOLDER)
        if holder is not None and holder.startswith(f"{self._run} ".encode()):
            self.client.hdel(self.keys.control, HOLDER)

    def _fill(self, missing: list[FrameName]) -> None:
        done = 0
        while done < len(missing):
            part = missing[done : done + self._sizer.size]
            step = self._step(calls.enlist(self.keys, part, **self._naming()))
            self.filled += step.listed
            done += step.seen
            self.progress("filling the list", done, len(missing))

    def _naming(self) -> dict[str, Any]:
        self.steps += 1
        return {"run": self._run, "step": self.steps}

    def _step(self, call: Call[ListStep]) -> ListStep:
        begun_ms = monotonic_ms()
        with finished_first():
            step = run(self.client, call)
        self._sizer.learn(step.seen, monotonic_ms() - begun_ms)
        return step

    def _find_missing(self) -> list[FrameName]:
        """Return what waits and is not in the list: by its number what is ours, then by start time what is not."""
        keys = self.keys
        # The timeout set first: what is offered meanwhile is in neither, or in the list as well.
        total = self.client.zcard(keys.queue.timeout_set)
        waiting: dict[FrameName, None] = {}
        unnamed: Counter[FrameHead] = Counter()
        for stretch in stretches(self.client, keys, "zset", total, self.progress):
            for frame in stretch:
                if name := name_of(frame):
                    waiting[name] = None
                else:
                    unnamed[frame] += 1
        total = self.client.llen(keys.queue.delay_queue)
        for stretch in stretches(self.client, keys, "tail", total, self.progress):
            for frame in stretch:
                if name := name_of(frame):
                    waiting.pop(name, None)
                elif unnamed[frame] > 0:
                    unnamed[frame] -= 1
        self.left_out = unnamed.total()
        # Sorting keeps the order of start times among the others.
        return sorted(waiting, key=_number_of)


def _number_of(name: FrameName) -> float:
    # Big-endian, so that bytes are in the order of numbers.
    is_ours = name.random_id.startswith((LISTED, UNLISTED))
    return int.from_bytes(name.random_id[2:]) if is_ours else inf
