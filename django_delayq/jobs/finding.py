"""`find_jobs`: the jobs of some queues, in some states, of a task, with a text, due at some time.

`delivery.searching` reads a queue. This module says what is looked for, and makes handles of what fits.
"""

import math
import re
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import msgspec
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.command import Command
from django_delayq.calls.steps import Steps, aperform, perform
from django_delayq.calls.together import together
from django_delayq.clients.clients import own_clients
from django_delayq.clients.performing import aperformed, performed
from django_delayq.delivery import looking, searching
from django_delayq.delivery.looking import Counts
from django_delayq.delivery.searching import (
    ALWAYS,
    SEARCH_PAGE,
    Found,
    FoundPage,
    Place,
    Stretch,
    Window,
)
from django_delayq.delivery.states import State
from django_delayq.exceptions import InvalidSearch
from django_delayq.jobs import bulk
from django_delayq.jobs.actions import (
    CANCEL,
    DISCARD,
    NO_DETAILS,
    RESCHEDULE,
    RETRY,
    RUN_NOW,
    Action,
    Details,
)
from django_delayq.jobs.answers import asking, complete, leaving_out
from django_delayq.jobs.arguments import has_sensitive, shown_arguments
from django_delayq.jobs.bulk import Changed
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.job import Job, is_unicode, job_of
from django_delayq.jobs.registry import find_task
from django_delayq.redaction import HIDDEN, brief, show
from django_delayq.wire.delay import Delay, parse_delay
from django_delayq.wire.signing import JOB_START

P = ParamSpec("P")
R = TypeVar("R")

#: One end of a range of times: a time, a time from now, or open.
Bound = datetime | timedelta | None
#: The states whose jobs a server can list.
LISTED = frozenset({*searching.PLACES.values(), State.DUE})

#: Python refuses to print an integer of many more bits.
LONGEST_NUMBER = 4096
_PLAIN_NAME = re.compile(r"[\w.]+", re.ASCII)
_MAY_DIFFER = re.compile(r'["\\/\x00-\x1f\x7f-\x9f]')
#: What the payload of an encrypted job has.
_ENCRYPTED = b'\\"encrypted\\":\\"'
_NUMBER = re.compile(r"[\d.e+-]+")
_ORDER = {place: number for number, place in enumerate(searching.PLACES)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ENDED = (
    "the server does not keep ended jobs; for 30 s, get_job(id) says how one ended. ended_jobs() and `manage.py"
    " delayq_jobs list --state ended` show how the last jobs ended. The result of a task with keep_result is kept"
    " for longer, by the job's id"
)
#: Why jobs in the other states are not listed.
_UNLISTED = {
    State.UNCOMMITTED: "only the process that prepared a job knows it before its commit",
    State.SUCCEEDED: _ENDED,
    State.DISCARDED: _ENDED,
    State.CANCELLED: _ENDED,
    State.EXPIRED: _ENDED,
    State.TAKEN: _ENDED,
    State.UNKNOWN: "it means that a job with a known id was not found where it should be",
    State.MISSING: "it means that the server has no job with a given id",
}
#: Where to look instead, for words that people take for states.
_NO_STATES = {
    "ended": (
        "; how jobs have ended is in the list “Ended” of a queue's page, in ended_jobs(), and in `manage.py delayq_jobs list"
        " --state ended`"
    ),
    "failed": "; jobs that failed are retrying, or dead or quarantined",
}


class _Moment(NamedTuple):
    """An end of a range: epoch ms, or ms from now."""

    ms: int
    is_relative: bool

    def at(self, now_ms: int) -> int:
        return self.ms + now_ms if self.is_relative else self.ms


class _Search(NamedTuple):
    """The search; checked."""

    queues: tuple[str, ...]
    states: frozenset[State]
    task: str | None
    #: Case-folded.
    text: str | None
    first: _Moment | None
    end: _Moment | None
    limit: int | None

    @property
    def is_by_state(self) -> bool:
        """Whether nothing but queues and states says what fits."""
        return not any((self.task, self.text, self.first, self.end))

    def window(self, now_ms: int) -> Window:
        return Window(
            None if self.first is None else self.first.at(now_ms),
            None if self.end is None else self.end.at(now_ms),
        )


class FoundJobs(Generic[R]):
    """The jobs that a search finds; see `find_jobs`.

    Iterate over it with ``for`` or ``async for``. Each iteration, and each method below, searches again.

    Example::

        found = find_jobs(queue="mail", state="scheduled")
        print(found.count())
        found.reschedule(timedelta(hours=1))
    """

    def __init__(
        self, search: _Search, watch: Callable[[int], None] | None = None
    ) -> None:
        self._search = search
        self._watch = watch
        self._walk: Walk | MergedWalk | None = None

    @property
    def unsearched(self) -> int:
        """Number of encrypted jobs that the last iteration skipped, because a search for text does not read them."""
        return 0 if self._walk is None else self._walk.unsearched

    def watched(self, watch: Callable[[int], None]) -> "FoundJobs[R]":
        """Return the same search, which calls ``watch`` after each page with the number of elements that it has looked at."""
        return FoundJobs(self._search, watch)

    def __repr__(self) -> str:
        found = self._search
        parts = [f"queues={list(found.queues)!r}"]
        if found.states != LISTED:
            parts.append(f"states={sorted(map(str, found.states))!r}")
        parts += [
            f"{name}={show(value)}"
            for name, value in (
                ("task", found.task),
                ("text", found.text),
                ("limit", found.limit),
            )
            if value is not None
        ]
        return f"<FoundJobs {' '.join(parts)}>"

    def __iter__(self) -> Iterator[Job[R]]:
        pages = self._pages()
        while (jobs := perform(own_clients.of_thread, pages.next())) is not None:
            yield from jobs
        self._check(pages.missing)

    async def __aiter__(self) -> AsyncIterator[Job[R]]:
        pages = self._pages()
        while (jobs := await aperform(own_clients.of_loop, pages.next())) is not None:
            for job in jobs:
                yield job
        self._check(pages.missing)

    def _check(
        self, missing: Mapping[str, Exception], found: int | None = None
    ) -> None:
        """Raise the error of a search that did not reach all queues."""
        if missing and len(missing) == len(self._search.queues):
            raise next(iter(missing.values()))
        complete(found, missing)

    def _pages(self) -> "Walk | MergedWalk":
        """Return the jobs of all pages in order: of a queue with shards, those of all shards by their start times."""
        settings = conf.get_settings()
        wholes = [settings.whole(name) for name in self._search.queues]
        if len(set(wholes)) == len(wholes):
            self._walk = walk = self.walk()
            return walk
        parts: dict[str, list[str]] = {}
        for whole, name in zip(wholes, self._search.queues, strict=True):
            parts.setdefault(whole, []).append(name)
        self._walk = merged = MergedWalk(
            self._search, list(parts.values()), self._watch
        )
        return merged

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that it looks into."""
        return self._search.queues

    def walk(
        self, mark: "Mark | None" = None, *, moves_to: str | None = None
    ) -> "Walk":
        """Return a walk through the jobs, page by page; with a mark of another walk, from there on. See `Walk`."""
        walk = Walk(self._search, moves_to=moves_to, watch=self._watch)
        if mark is not None:
            walk.go_on(mark)
        return walk

    def count_at_most(self) -> int:
        """Return how many jobs a walk looks at, at most: all in these queues and states. One short call a queue.

        Raises:
            PartialAnswer: see `count`.
        """
        every = self._search._replace(task=None, text=None, first=None, end=None)
        return FoundJobs(every).count()

    @performed
    def count(self) -> Steps[int]:
        """Return the number of jobs. A search by queue and state alone is fast; any other reads all jobs.

        Raises:
            PartialAnswer: some queues did not answer; ``found`` is the number of jobs in the others.
        """
        search, total = self._search, 0
        if search.is_by_state:
            settings = conf.get_settings()
            queues = [settings.queue(name) for name in search.queues]
            answers = yield from asking(queues, map(_counting_in, queues))
            for _, counts in answers.of(queues):
                total += sum(_count_of(state, counts) for state in search.states)
            total = total if search.limit is None else min(total, search.limit)
            return complete(total, answers.missing)
        walk = self.walk()
        while (jobs := (yield from walk.next())) is not None:
            total += sum(1 for _ in jobs)
        self._check(walk.missing, total)
        return total

    acount = aperformed(count)

    def _changing(
        self, action: Action, details: Details = NO_DETAILS
    ) -> Steps[Changed]:
        """Do an action to the jobs."""
        # What moves, and waits or dies again meanwhile, is passed over: its start time is that of this walk.
        walk = self.walk(moves_to=details.when if action.moves else None)
        return bulk.changing(walk, action, details)

    @performed
    def cancel(self) -> Steps[Changed]:
        """Cancel the jobs, each as `Job.cancel` does; return how many were cancelled, and why others were not.

        Raises:
            MaybeChanged: an error of the server or the connection interrupted the change, or stopped it for some queues.
                The error says what was done.
        """
        return self._changing(CANCEL)

    acancel = aperformed(cancel)

    @performed
    def reschedule(self, delay: Delay) -> Steps[Changed]:
        """Give all jobs the same new start time, each as `Job.reschedule` does. The delay counts from now.

        A job that has this start time already is left alone and not counted.

        Raises:
            InvalidDelay: see `parse_delay`.
            MaybeChanged: see `cancel`.
        """
        return self._changing(RESCHEDULE, Details(parse_delay(delay)))

    areschedule = aperformed(reschedule)

    @performed
    def run_now(self) -> Steps[Changed]:
        """Make jobs that wait due now, each as `Job.run_now` does.

        A job that is due already counts as won, and stays in its place.

        Raises:
            MaybeChanged: see `cancel`.
        """
        return self._changing(RUN_NOW)

    arun_now = aperformed(run_now)

    @performed
    def retry(self) -> Steps[Changed]:
        """Retry dead letters and quarantined jobs, each as `Job.retry` does.

        Raises:
            MaybeChanged: see `cancel`.
        """
        return self._changing(RETRY)

    aretry = aperformed(retry)

    @performed
    def discard(self) -> Steps[Changed]:
        """Delete dead letters and quarantined payloads for good, each as `Job.discard` does.

        Raises:
            MaybeChanged: see `cancel`.
        """
        return self._changing(DISCARD)

    adiscard = aperformed(discard)


def _counting_in(queue: conf.QueueSettings) -> Steps[Counts]:
    counts: Counts = yield looking.counts(queue.keys)
    return counts


def _count_of(state: State, counts: Counts) -> int:
    return {
        State.SCHEDULED: counts.waiting - counts.due,
        State.DUE: counts.due + counts.destination,
        State.RUNNING: counts.running,
        State.RETRYING: counts.retrying,
        State.HELD: counts.held,
        State.DEAD: counts.dead,
        State.QUARANTINED: counts.quarantined,
    }[state]


def target_of(moves_to: str, now_us: int) -> int:
    """Return where jobs are moved, epoch ms; ``moves_to`` is as `parse_delay` returns it."""
    # Both are rounded up, as in the scripts.
    next_ms = -(-now_us // 1000)
    kind, ms = moves_to[0], int(moves_to[1:])
    return max(ms + next_ms if kind == "+" else ms, next_ms)


def ask_time() -> Command[int]:
    """Ask for the server's clock, us."""
    return Command(("TIME",), _read_time)


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
        search: _Search,
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
            self._place = searching.first_place(
                self._search.states, self._window, now_ms=self._now_ms
            )
            if self._place.is_at_end:
                self._queues.popleft()
        queue = settings.queue(self._queues[0])
        page: FoundPage = yield searching.search(
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


def _read_time(reply: list[Any]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])


def may_be_of(task: str | None, payload: bytes) -> bool:
    """Return False if a payload shows at a glance that it is of another task."""
    if task is None or not payload.startswith(JOB_START):
        return True
    # In any other name, JSON may have escaped something.
    return _PLAIN_NAME.fullmatch(task) is None or task.encode() in payload


def may_have(text: str | None, found: Found) -> bool:
    """Return False if one of our jobs shows at a glance, undecoded, that a case-folded text stands nowhere in it."""
    if (
        text is None
        or not found.payload.startswith(JOB_START)
        # JSON writes some characters in another way, and a number in more than one.
        or _MAY_DIFFER.search(text)
        or _NUMBER.fullmatch(text)
        # It is counted.
        or _ENCRYPTED in found.payload
        or b'"encrypted":"' in found.error
    ):
        return True
    for part in (found.payload, found.error):
        try:
            if b"\\u" in part or text in part.decode().casefold():
                return True
        except UnicodeDecodeError:
            return True
    return False


def has_text(job: Job[Any], found: Found, text: str) -> bool:
    """Return whether a case-folded text stands in a value of the arguments, or in the error, if they are not encrypted."""
    error = job.error or {}
    if "encrypted" not in error and any(
        text in each.casefold() for each in _strings_in(error)
    ):
        return True
    if job.is_encrypted:
        return False
    # What is not shown cannot be guessed either.
    if job.task is None:
        if has_sensitive(found.payload):
            return False
        return text in found.payload.decode(errors="replace").casefold()
    arguments: Any = [job.args, job.kwargs]
    task = find_task(job.task)
    if task is not None and task.base.sensitive:
        shown = shown_arguments(task, job.args, job.kwargs)
        arguments = [{name: value} for name, value in shown if value is not HIDDEN]
    return any(text in each.casefold() for each in _values_in(arguments))


def _strings_in(error: object) -> Iterator[str]:
    return (value for value in _leaves_of(error) if isinstance(value, str))


def _values_in(arguments: object) -> Iterator[str]:
    """Yield all strings and keys, and numbers and constants as JSON writes them."""
    for value in _leaves_of(arguments, with_keys=True):
        if isinstance(value, str):
            yield value
        elif value is None or isinstance(value, bool):
            yield {None: "null", True: "true", False: "false"}[value]
        elif isinstance(value, float) or value.bit_length() < LONGEST_NUMBER:
            yield repr(value)


class MergedWalk:
    """A walk through queues with shards: the shards of each are read side by side, a page of each at a time."""

    def __init__(
        self,
        search: _Search,
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


def _leaves_of(value: object, *, with_keys: bool = False) -> Iterator[Any]:
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as items:
                if with_keys:
                    yield from items
                rest += items.values()
            case list() as items:
                rest += items
            case leaf:
                yield leaf


@overload
def find_jobs(
    *,
    task: DelayedTask[P, Coroutine[Any, Any, R]],
    queue: str | Iterable[str] | None = None,
    state: str | Iterable[str] | None = None,
    text: str | None = None,
    due: tuple[Bound, Bound] | None = None,
    limit: int | None = None,
) -> FoundJobs[R]: ...
@overload
def find_jobs(
    *,
    task: DelayedTask[P, R],
    queue: str | Iterable[str] | None = None,
    state: str | Iterable[str] | None = None,
    text: str | None = None,
    due: tuple[Bound, Bound] | None = None,
    limit: int | None = None,
) -> FoundJobs[R]: ...
@overload
def find_jobs(
    *,
    task: str | None = None,
    queue: str | Iterable[str] | None = None,
    state: str | Iterable[str] | None = None,
    text: str | None = None,
    due: tuple[Bound, Bound] | None = None,
    limit: int | None = None,
) -> FoundJobs[Any]: ...
def find_jobs(
    *,
    task: Any = None,
    queue: str | Iterable[str] | None = None,
    state: str | Iterable[str] | None = None,
    text: str | None = None,
    due: tuple[Bound, Bound] | None = None,
    limit: int | None = None,
) -> FoundJobs[Any]:
    """Find jobs. The search reads the server page by page, while you iterate.

    Without arguments it finds all jobs in the configured queues. ``queue`` is a name or several, ``state`` a `State` or
    several, ``task`` a task or its registered name, and ``limit`` the largest number of jobs. ``text`` is searched, in
    upper or lower case, in the names and values of the arguments and in the error. ``due`` is a range of
    `Job.start_time` that includes its start but not its end. An end of the range is an aware datetime, a timedelta from
    now, or None.

    The search skips queues that cannot be read, because a node of a cluster is down. After the last job, the iteration
    raises `PartialAnswer` with their names.

    A job that does not move during the search is found once. A job that moves may be found once, twice, or not at all.

    Example::

        for job in find_jobs(queue="mail", state="dead", text="4711"):
            print(job.id, job.error)

        find_jobs(task=newsletter, due=(None, timedelta(hours=1))).cancel()

    Raises:
        QueueNotFound: a queue is not configured.
        InvalidSearch: an argument is wrong; the message says which, and why.
    """
    first, end = _check_due(due)
    return FoundJobs(
        _Search(
            _check_queues(queue),
            _check_states(state),
            _check_task(task),
            _check_text(text),
            first,
            end,
            _check_limit(limit),
        )
    )


#: `find_jobs`, for code on the event loop. It asks nothing of the server, so both are one: what it returns can be
#: iterated over with ``async for``, and its methods have twins.
afind_jobs = find_jobs


def _check_queues(queue: Any) -> tuple[str, ...]:
    settings = conf.get_settings()
    if queue is None:
        return tuple(each.name for each in settings.queues_of())
    names = [queue] if isinstance(queue, str) else _items(queue, "queue", "a name")
    for name in names:
        if not isinstance(name, str):
            raise InvalidSearch(f"a queue has a name, a string; got {show(name)}")
    # Nothing is found where nothing is looked for.
    parts = settings.queues_of(*names) if names else []
    return tuple(each.name for each in parts)


def _check_states(state: Any) -> frozenset[State]:
    if state is None:
        return LISTED
    states = [state] if isinstance(state, str) else _items(state, "state", "a State")
    listed = ", ".join(one for one in State if one in LISTED)
    found = set()
    for one in states:
        try:
            known = State(one)
        except ValueError:
            hint = _NO_STATES.get(one, "") if isinstance(one, str) else ""
            raise InvalidSearch(
                f"{show(one)} is not a state; the states that can be found are {listed}{hint}"
            ) from None
        if known in _UNLISTED:
            raise InvalidSearch(
                f"jobs that are {known} cannot be found: {_UNLISTED[known]}. The states that can be found are {listed}"
            )
        found.add(known)
    return frozenset(found)


def _items(value: Any, name: str, what: str) -> list[Any]:
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise InvalidSearch(f"{name} is {what}, or several of them; got {show(value)}")
    return list(value)


def _check_task(task: Any) -> str | None:
    if task is None:
        return None
    if isinstance(task, DelayedTask):
        return task.name
    # A name that this process does not know is fine: jobs outlive the tasks that they name.
    if isinstance(task, str) and task:
        return task
    raise InvalidSearch(
        f"task is a function decorated with @delayed_task, or the name of one; got {show(task)}"
    )


def _check_text(text: Any) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str) or not text or not is_unicode(text):
        raise InvalidSearch(
            f"text is a string that is not empty; got {show(text)}. To find jobs with any text, leave it out"
        )
    return text.casefold()


def _check_limit(limit: Any) -> int | None:
    if limit is not None and (
        not isinstance(limit, int) or isinstance(limit, bool) or limit < 0
    ):
        raise InvalidSearch(
            f"limit is a number of jobs, 0 or more, or None for all; got {show(limit)}"
        )
    return limit


def _check_due(due: Any) -> tuple[_Moment | None, _Moment | None]:
    if due is None:
        return None, None
    if not isinstance(due, tuple | list) or len(due) != 2:
        raise InvalidSearch(
            "due is a range, (start, end): aware datetimes, timedeltas from now, or None for an open end;"
            f" got {show(due)}"
        )
    first, end = map(_check_bound, due)
    if (
        first is not None
        and end is not None
        and first.is_relative == end.is_relative
        and first.ms > end.ms
    ):
        raise InvalidSearch(
            f"due begins after its end: {show(due)}; the earlier time comes first"
        )
    return first, end


def _check_bound(bound: Any) -> _Moment | None:
    if bound is None:
        return None
    # Both ends are rounded up: start times are whole ms.
    if isinstance(bound, timedelta):
        return _Moment(-(-bound // _MILLISECOND), is_relative=True)
    if not isinstance(bound, datetime):
        raise InvalidSearch(
            f"an end of due is an aware datetime, a timedelta from now, or None; got {show(bound)}, of type"
            f" {type(bound).__name__}"
        )
    if bound.utcoffset() is None:
        raise InvalidSearch(
            f"a datetime needs a time zone to say when it is; got {show(bound)}. django.utils.timezone.now() has one,"
            " make_aware() adds one"
        )
    return _Moment(-((_EPOCH - bound) // _MILLISECOND), is_relative=False)
