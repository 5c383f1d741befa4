"""Walks through all that a search finds, page by page; of queues with shards, in one order.

`core.search_calls` reads a queue; this makes handles of the jobs that fit.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.core import search_calls
from django_delayq.core.search_calls import (
    ALWAYS,
    SEARCH_PAGE,
    Found,
    FoundPage,
    Place,
    Stretch,
)
from django_delayq.jobs.answers import leaving_out
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import job_of
from django_delayq.jobs.match import has_text, may_be_of, may_have
from django_delayq.jobs.search import Search
from django_delayq.redaction import brief
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

_ORDER = {place: number for number, place in enumerate(search_calls.PLACES)}


def target_of(moves_to: str, now_us: int) -> int:
    """Return where jobs are moved, epoch ms; ``moves_to`` is as `parse_delay` returns it."""
    # Both are rounded up, as in the scripts.
    next_ms = -(-now_us // 1000)
    kind, ms = moves_to[0], int(moves_to[1:])
    return max(ms + next_ms if kind == "+" else ms, next_ms)


def ask_time() -> Command[int]:
    """Ask for the server's clock, us."""
    return Command(("TIME",), _read_time)


def _read_time(reply: list[Any]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])


class Fit(NamedTuple):
    """An element that a search has found."""

    found: Found
    job: Job[Any]


class Read(NamedTuple):
    """The elements that a walk has read with one call."""

    queue: str
    now_ms: int
    #: How many elements it has looked at.
    looked: int
    #: Those that fit.
    fits: Iterator[Fit]


@brief
class Mark(msgspec.Struct, array_like=True):
    """How far a walk has come, to be written down."""

    queues: tuple[str, ...]
    now_ms: int
    target_ms: int
    left: int | None
    rest: tuple[Stretch, ...]
    where: bytes
    element: bytes

    @property
    def is_at_end(self) -> bool:
        return not self.queues


class Walk:
    """One way through all that a search finds, page by page."""

    def __init__(
        self,
        search: Search,
        *,
        moves_to: str | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """``moves_to``, as `parse_delay` returns it, is where the jobs are moved while they are found.

        They come to lie ahead of the walk, which passes over what has that start time. ``watch`` gets after each page
        the number of elements that were looked at.
        """
        self._search = search
        self._watch = watch
        self._looked = 0
        self._moves_to = moves_to
        self._queues = deque(search.queues)
        self._place = Place(())
        self._left = search.limit
        #: The server's clock when the walk began, epoch ms. A walk that has not begun has no window either.
        self._now_ms: int | None = None
        self._window = ALWAYS
        #: Where the jobs are moved, epoch ms.
        self.target_ms = 0
        #: Encrypted jobs that may have the text: nobody looks for it in them.
        self.unsearched = 0
        #: The error of each queue that was not read to its end, by its name.
        self.missing: dict[str, Exception] = {}

    @property
    def queue(self) -> str:
        """The name of the queue that is read next."""
        return self._queues[0]

    @property
    def mark(self) -> Mark:
        """How far it has come. Elements that it has read count as used up."""
        place = self._place.shortened()
        return Mark(
            tuple(self._queues) if self._left != 0 else (),
            self._now_ms or 0,
            self.target_ms,
            self._left,
            place.rest,
            place.where,
            place.element,
        )

    def go_on(self, mark: Mark) -> None:
        """Begin where another walk of the same search has come to."""
        self._queues = deque(mark.queues)
        self._place = Place(mark.rest, mark.where, mark.element)
        self._left, self._now_ms = mark.left, mark.now_ms
        self._window = self._search.window(mark.now_ms)
        self.target_ms = mark.target_ms

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Read a page, and return the jobs that fit; None at the end."""
        page = yield from self.read()
        return None if page is None else (fit.job for fit in page.fits)

    def read(self, count: int = SEARCH_PAGE) -> Steps[Read | None]:
        """Read up to ``count`` elements, and return those that fit; None at the end.

        Goes on without a queue that cannot be read, which is `missing` from then on.
        """
        if self._now_ms is None and self._left != 0:
            now_us = yield ask_time()
            self.begin(now_us)
        while True:
            try:
                return (yield from self.read_next(count))
            except RedisError as error:
                yield from self.leave_out(self._queues[0], error)

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """Go on without a queue, and without those on the same node of a cluster.

        Raises:
            redis.exceptions.RedisError: no other queue would answer either.
        """
        if self._queues and self._queues[0] == queue:
            self._queues.popleft()
            self._place = Place(())
        rest = yield from leaving_out(self.missing, queue, error, list(self._queues))
        self.pass_over(set(self._queues) - set(rest))

    def pass_over(self, queues: Collection[str]) -> None:
        """Read nothing more of these queues."""
        if self._queues and self._queues[0] in queues:
            self._place = Place(())
        self._queues = deque(name for name in self._queues if name not in queues)

    def read_next(self, count: int = SEARCH_PAGE) -> Steps[Read | None]:
        """Read as `read` does, once the walk has begun; its first queue is the one that an error concerns."""
        if self._left == 0:
            return None
        settings = conf.get_settings()
        while self._place.is_at_end:
            if not self._queues:
                return None
            assert self._now_ms is not None
            self._place = search_calls.first_place(
                self._search.states, self._window, now_ms=self._now_ms
            )
            if self._place.is_at_end:
                self._queues.popleft()
        queue = settings.queue(self._queues[0])
        page: FoundPage = yield search_calls.search(
            queue.keys,
            self._place,
            count=count,
            # One byte more shows that a payload is too large to be read.
            payload_bytes=max(settings.max_payload_bytes, settings.max_foreign_bytes)
            + 1,
            frame_format=queue.frame_format,
        )
        self._place = page.place
        self._looked += len(page.found)
        if self._watch is not None:
            self._watch(self._looked)
        if page.place.is_at_end:
            self._queues.popleft()
        fits = self._fitting(queue.name, page)
        return Read(queue.name, page.now_ms, len(page.found), fits)

    def begin(self, now_us: int) -> None:
        """Begin by the server's clock."""
        self._now_ms = now_us // 1000
        self._window = self._search.window(self._now_ms)
        if self._moves_to is not None:
            self.target_ms = target_of(self._moves_to, now_us)

    def _fitting(self, queue: str, page: FoundPage) -> Iterator[Fit]:
        search = self._search
        for found in page.found:
            if self._left == 0:
                return
            if (
                found.state not in search.states
                or not self._window.has(found.due_ms)
                or self._is_moved(found, page.now_ms)
                or not may_be_of(search.task, found.payload)
                or not may_have(search.text, found)
            ):
                continue
            job = job_of(queue, found)
            if search.task is not None and job.task != search.task:
                continue
            if search.text is not None and not has_text(job, found, search.text):
                self.unsearched += job.is_encrypted or "encrypted" in (job.error or {})
                continue
            if self._left is not None:
                self._left -= 1
            yield Fit(found, job)

    def _is_moved(self, found: Found, now_ms: int) -> bool:
        if self._moves_to is None or found.place == "destination":
            return False
        # A time that passes while the walk goes on means now. A job that was moved may have run since, and wait for its
        # next attempt, be held or be a dead letter: when it was due first is still where it was moved.
        last_ms = max(self.target_ms, now_ms + 1)
        return any(
            ms is not None and self.target_ms <= ms <= last_ms
            for ms in (found.due_ms, found.first_ms)
        )


class MergedWalk:
    """A walk through queues with shards: the shards of each are read side by side, a page of each at a time."""

    def __init__(
        self,
        search: Search,
        parts: list[list[str]],
        watch: Callable[[int], None] | None,
    ) -> None:
        """``parts`` are the shards of each queue, by name."""
        self._search = search
        self._parts = deque(parts)
        self._watch = watch
        self._left = search.limit
        self._looked = 0
        self._now_us: int | None = None
        # Those of walks that are at their end.
        self._unsearched = 0
        # Those that are not at their end, with what they have read.
        self._walks: list[tuple[Walk, deque[Fit]]] = []
        #: See `Walk.missing`.
        self.missing: dict[str, Exception] = {}

    @property
    def unsearched(self) -> int:
        """See `Walk.unsearched`."""
        return self._unsearched + sum(walk.unsearched for walk, _ in self._walks)

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Return the jobs that come next; None at the end."""
        if self._left == 0:
            return None
        while not self._walks:
            if not self._parts:
                return None
            if self._now_us is None:
                self._now_us = yield ask_time()
            for name in self._parts.popleft():
                walk = Walk(self._search._replace(queues=(name,)))
                walk.begin(self._now_us)
                self._walks.append((walk, deque()))
            yield from self._fill()
        jobs = []
        # Where one has nothing at hand, nobody knows what comes next.
        while self._walks and all(fits for _, fits in self._walks):
            if self._left == 0:
                break
            fits = min(
                (fits for _, fits in self._walks), key=lambda fits: _rank(fits[0])
            )
            jobs.append(fits.popleft().job)
            if self._left is not None:
                self._left -= 1
        if self._left != 0:
            yield from self._fill()
        return iter(jobs)

    def _fill(self) -> Steps[None]:
        """Read on where nothing is at hand, and let go of what is at its end."""
        while hungry := [each for each in self._walks if not each[1]]:
            replies = yield from together([walk.read_next() for walk, _ in hungry])
            for each, page in zip(hungry, replies, strict=True):
                if isinstance(page, Exception):
                    yield from self._leave_out(each[0].queue, page)
                if page is None or isinstance(page, Exception):
                    self._walks.remove(each)
                    self._unsearched += each[0].unsearched
                    continue
                each[1].extend(page.fits)
                self._looked += page.looked
            if self._watch is not None:
                self._watch(self._looked)

    def _leave_out(self, queue: str, error: Exception) -> Steps[None]:
        rest = [name for part in self._parts for name in part]
        left = yield from leaving_out(self.missing, queue, error, rest)
        parts = ([name for name in part if name in left] for part in self._parts)
        self._parts = deque(filter(None, parts))


def _rank(fit: Fit) -> tuple[int, float]:
    """Return where an element stands among those of other shards: by its place, and there by its start time."""
    due_ms = fit.found.due_ms
    return _ORDER[fit.found.place], math.inf if due_ms is None else due_ms
