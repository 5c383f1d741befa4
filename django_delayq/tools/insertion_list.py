"""Bringing Redisson's list in line with ``INSERTION_LIST``: a run of short, atomic steps that may end after any of them.

It serves a queue whose setting was changed: `Listing.fill` adds waiting frames that are missing from the list,
`Listing.empty` takes out the frames that wait anyway. Workers, producers and Java continue meanwhile. After an interrupt,
simply start again.
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

from django_delayq.clock import monotonic_ms
from django_delayq.core.frame_heads import LISTED, UNLISTED, FrameHead
from django_delayq.core.keys import DeliveryKeys
from django_delayq.tools import frame_calls
from django_delayq.tools.frame_calls import FrameName, ListStep
from django_delayq.tools.pace import finished_first, step_sizer
from django_delayq.tools.survey import (
    EMPTIED,
    Progress,
    ignore_progress,
    name_of,
    stretches,
)
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.call import Call
from django_delayq.transport.run import run
from django_delayq.wording import gettext

#: Field of the control hash: who fills or empties the list. `_mark.lua` has the same name.
HOLDER = "listing"
#: Walks of one filling run: a later one finds what producers with the old setting offered meanwhile.
PASSES = 3


@dataclass(slots=True)
class Listing:
    """One run over one queue. The numbers are right after every step, even if the run is interrupted."""

    client: Redis
    keys: DeliveryKeys
    progress: Progress = ignore_progress
    #: Frames put into the list.
    filled: int = 0
    #: Frames taken out of it.
    emptied: int = 0
    #: Frames that are only in the list, and stay there.
    alone: int = 0
    #: Waiting members that no step can find, and that stay out of the list: no frames, or start times that are not whole
    #: milliseconds from 0 on.
    left_out: int = 0
    steps: int = 0
    _run: str = field(default_factory=lambda: secrets.token_urlsafe(8))
    _sizer: BatchSizer = field(default_factory=step_sizer)

    def fill(self) -> None:
        """Add the waiting frames that the list misses: ours in the order of arrival, then Java's by start time.

        They go to the tail, behind what was offered since the list is kept.

        Raises:
            ListBusy: another process fills or empties this list.
        """
        with self._holding():
            # Hold the list before the first look, so that nobody else fills in what this run finds missing.
            self._step(frame_calls.enlist(self.keys, (), **self._naming()))
            for _ in range(PASSES):
                missing = self._find_missing()
                self._fill(missing)
                if not missing:
                    break
            self.client.hdel(self.keys.control, EMPTIED)

    def empty(self) -> None:
        """Empty the list; its frames still wait, in the timeout set only.

        It ends with the frames that were there when it began, because Java and others still append.

        Raises:
            ListBusy: another process fills or empties this list.
        """
        queue = self.keys.queue
        with self._holding():
            total = left = self.client.llen(queue.delay_queue)
            while left > 0:
                batch = min(self._sizer.size, left)
                step = self._step(
                    frame_calls.delist(self.keys, batch=batch, **self._naming())
                )
                self.emptied += step.seen - step.listed
                self.alone += step.listed
                # Workers take frames out as well; frames that stay went to the tail.
                there = self.client.llen(queue.delay_queue)
                left = min(left - step.seen, there - self.alone)
                self.progress(
                    gettext("removing frames from the list"),
                    total - max(left, 0),
                    total,
                )

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the list for this run, and release it at the end; after a lost server it is free in half a minute."""
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
            step = self._step(frame_calls.enlist(self.keys, part, **self._naming()))
            self.filled += step.listed
            done += step.seen
            self.progress(gettext("adding frames to the list"), done, len(missing))

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
        """Return the waiting frames that the list misses: ours by their numbers, then others by start time."""
        keys = self.keys
        # The timeout set first: a frame offered meanwhile is then in neither reading, or in the list as well.
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
    # Big-endian, as scripts write them.
    is_ours = name.random_id.startswith((LISTED, UNLISTED))
    return int.from_bytes(name.random_id[2:]) if is_ours else inf
