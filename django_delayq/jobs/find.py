"""`find_jobs`: the jobs of some queues, in some states, of a task, with a text, due at some time."""

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from django_delayq import conf
from django_delayq.core import queue_reads
from django_delayq.core.queue_reads import Counts
from django_delayq.core.states import State
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
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.bulk import Changed
from django_delayq.jobs.decorator import DelayedTask
from django_delayq.jobs.job import Job
from django_delayq.jobs.search import LISTED, Search, search_for
from django_delayq.jobs.walk import Mark, MergedWalk, Walk
from django_delayq.redaction import show
from django_delayq.transport.clients import own_clients
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps, aperform, perform
from django_delayq.wire.delay import Delay, parse_delay

P = ParamSpec("P")
R = TypeVar("R")

#: One end of a range of times: a time, a time from now, or open.
Bound = datetime | timedelta | None


class FoundJobs(Generic[R]):
    """The jobs that a search finds; see `find_jobs`.

    Iterate over it with ``for`` or ``async for``. Each iteration, and each method below, searches again.

    Example::

        found = find_jobs(queue="mail", state="scheduled")
        print(found.count())
        found.reschedule(timedelta(hours=1))
    """

    def __init__(
        self, search: Search, watch: Callable[[int], None] | None = None
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
    counts: Counts = yield queue_reads.counts(queue.keys)
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
    return FoundJobs(
        search_for(queue=queue, state=state, task=task, text=text, due=due, limit=limit)
    )


#: `find_jobs`, for code on the event loop. It asks nothing of the server, so both are one: what it returns can be
#: iterated over with ``async for``, and its methods have twins.
afind_jobs = find_jobs
