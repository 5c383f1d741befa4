"""Rewriting the frames of a queue to the other format: a run of short, atomic steps that may end after any of them.

It serves teams whose Java services move across Redisson 3.21.1. A step rewrites some frames in place, so a reader
between two steps finds each element once. After an interrupt, simply start again.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from redis.client import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import monotonic_ms
from django_delayq.core import frame_heads
from django_delayq.core.frame_heads import Kind
from django_delayq.core.keys import DeliveryKeys
from django_delayq.logs import get_log
from django_delayq.tools import frame_calls
from django_delayq.tools.frame_calls import FrameName
from django_delayq.tools.pace import finished_first, step_sizer
from django_delayq.tools.survey import (
    JAVA_BATCH,
    Progress,
    ignore_progress,
    lookups_of,
    parts_of,
)
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.run import run
from django_delayq.waiting.channel import ChannelListener, ignore_message
from django_delayq.wire.frame import FrameFormat, is_read_by
from django_delayq.wire.script_calls import START
from django_delayq.wording import gettext

logger = get_log(__name__)

#: Walks over the timeout set in one run: a later one finds what producers of the other format offered meanwhile.
PASSES = 3
#: While following, how often to look if nothing is announced, s.
FOLLOW_S = 1.0
#: While following, frames due this soon are looked at one by one: Redisson's own time between two retries.
HORIZON_MS = 5_000
#: While following, the least share of the time in which we leave the server alone.
REST = 0.9


@dataclass(slots=True)
class Tally:
    """The result of a run."""

    rewritten: int = 0
    #: Of these only in the delay queue, from where nobody transfers them.
    alone: int = 0
    quarantined: int = 0
    #: Delivered already, and taken out.
    dropped: int = 0
    steps: int = 0

    @property
    def changed(self) -> int:
        return self.rewritten + self.quarantined + self.dropped


@dataclass(slots=True)
class Reframing:
    """One run over one queue. ``tally`` is right after every step, even if the run is interrupted."""

    client: Redis
    keys: DeliveryKeys
    target: FrameFormat
    progress: Progress = ignore_progress
    tally: Tally = field(default_factory=Tally)
    _sizer: BatchSizer = field(default_factory=step_sizer)

    def drop_delivered(self, names: Sequence[FrameName]) -> None:
        """Take out of the timeout set what a survey found delivered already, if that still holds."""
        listed = self.client.llen(self.keys.queue.delay_queue)
        for part in parts_of(names, lookups_of(listed)):
            with finished_first():
                flags = run(self.client, frame_calls.drop_delivered(self.keys, part))
                self.tally.dropped += sum(flags)
                self.tally.steps += 1

    def run(self) -> Tally:
        """Rewrite everything, and wake the transfers that were stuck."""
        stop = self._find_stop()
        start_time_ms, held = stop or (None, b"")
        # The delay queue first: its walk knows the place of each frame without a search.
        self._walk("tail", held=held)
        announced = 0
        if start_time_ms is not None:
            self._walk("zset", held=held)
            self._walk("zset", until_ms=start_time_ms)
            announced = self.tally.changed
            self._announce(announced)
        for _ in range(PASSES):
            if not self._walk("zset"):
                break
        self._announce(self.tally.changed - announced)
        return self.tally

    def _find_stop(self) -> tuple[float, bytes] | None:
        """Return when the frame that stops transfers is due, and how it begins; None if nothing stops them.

        That frame is rewritten last. If it were rewritten with the others, each retry would deliver again all frames
        rewritten by then, ever more of them; this way each delivers again only what the jam had delivered before.
        """
        head = frame_heads.survey(self.keys, "zset", batch=JAVA_BATCH)
        for score, size, begin in run(self.client, head).frames:
            # Redisson looks from 0 on.
            if score is None or score < 0 or is_read_by(self.target, begin, size):
                continue
            return score, begin
        return None

    def follow(self) -> Iterator[Tally]:
        """Go on rewriting what is offered in the other format, until the caller stops; yields after each look."""
        news = threading.Event()
        listener = ChannelListener(self.client, name="delayq-frames")
        # Subscribed to our channel as well, so that it counts as a process of ours.
        listener.subscribe(self.keys.channel, ignore_message)
        listener.subscribe(self.keys.queue.channel, lambda message: news.set())
        try:
            while True:
                news.wait(FOLLOW_S)
                news.clear()
                begun_ms = monotonic_ms()
                try:
                    self._catch_up()
                except (RedisConnectionError, RedisTimeoutError) as error:
                    logger.warning(
                        "the server does not answer, trying again: %s", error
                    )
                took_s = (monotonic_ms() - begun_ms) / 1000
                yield self.tally
                time.sleep(took_s * REST / (1 - REST))
        finally:
            listener.stop()

    def _catch_up(self) -> None:
        # New frames lie at the tail of the delay queue; a step that finds nothing has reached the known ones. The walk
        # below meets a frame that lies deeper, or in no list, before it can stop anybody.
        changed = self._walk("tail", is_until_clean=True, is_told=False)
        seconds, us = self.client.time()
        until_ms = seconds * 1000 + us // 1000 + HORIZON_MS
        changed += self._walk("zset", until_ms=until_ms, is_told=False)
        self._announce(changed)

    def _announce(self, changed: int) -> None:
        # Only after the walk: a transfer that wakes while frames of the other format are left delivers again what lies
        # ahead of them.
        if changed:
            run(self.client, frame_calls.announce(self.keys))

    def _walk(
        self,
        kind: Kind,
        *,
        until_ms: float = inf,
        held: bytes = b"",
        is_until_clean: bool = False,
        is_told: bool = True,
    ) -> int:
        queue = self.keys.queue
        listed = self.client.llen(queue.delay_queue)
        total = listed if kind == "tail" else self.client.zcard(queue.timeout_set)
        what = (
            gettext("rewriting the delay queue")
            if kind == "tail"
            else gettext("rewriting the timeout set")
        )
        cursor, done, changed = START, 0, 0
        while not cursor.is_at_end:
            begun_ms = monotonic_ms()
            call = frame_calls.reframe(
                self.keys,
                kind,
                self.target,
                cursor,
                until_ms=until_ms,
                held=held,
                batch=self._sizer.size,
                lookups=lookups_of(listed),
            )
            with finished_first():
                step = run(self.client, call)
                self.tally.rewritten += step.rewritten
                self.tally.alone += step.alone
                self.tally.quarantined += step.quarantined
                self.tally.steps += 1
            self._sizer.learn(step.seen, monotonic_ms() - begun_ms)
            cursor = step.cursor
            done += step.seen
            changed += step.rewritten + step.quarantined
            if is_told:
                self.progress(what, done, max(total, done))
            if is_until_clean and not step.rewritten and not step.quarantined:
                break
        return changed
