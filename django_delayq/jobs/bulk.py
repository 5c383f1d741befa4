"""Changing all jobs that a search finds: one by one, each atomically, with a count of how that went.

The search reads a page, the jobs of it are changed some hundred at a time, and nothing is kept of them but the count.
So memory is bounded, however many there are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from redis.exceptions import RedisError

from django_delayq.core.states import Change, State
from django_delayq.exceptions import MaybeChanged
from django_delayq.faults import describe_fault
from django_delayq.jobs.actions import CANCEL, NO_DETAILS, Action, Details
from django_delayq.jobs.answers import missing_line
from django_delayq.jobs.cancellation import cancel_calls, tell_cancelled
from django_delayq.jobs.job import Job
from django_delayq.transport.errors import may_have_run
from django_delayq.transport.steps import Steps
from django_delayq.transport.together import together

#: Jobs whose changes share one write.
BATCH = 100


class Changed(NamedTuple):
    """The result of a change of many jobs.

    Example::

        changed = find_jobs(task=newsletter).cancel()
        print(changed.won, "cancelled;", changed.lost)  # 380 cancelled; {<State.RUNNING>: 2}
    """

    #: How many jobs are changed.
    won: int
    #: How many were left alone, by the state in which they were left.
    lost: dict[State, int]


class Pages(Protocol):
    """The jobs to change."""

    @property
    def target_ms(self) -> int:
        """Where they are moved, epoch ms."""

    @property
    def missing(self) -> Mapping[str, Exception]:
        """The error of each queue that was left out, by its name."""

    def next(self) -> Steps[Iterator[Job[Any]] | None]:
        """Return some more of them, all of one queue; None at the end."""

    def leave_out(self, queue: str, error: Exception) -> Steps[None]:
        """Go on without a queue. Raise the error if no other queue would answer either."""


#: Hears of each job how its change went.
Took = Callable[[Job[Any], bool], None]


def _ignore(job: Job[Any], is_won: bool) -> None:
    """Hear nothing."""


def changing(
    pages: Pages, action: Action, details: Details = NO_DETAILS, took: Took = _ignore
) -> Steps[Changed]:
    """Do an action to jobs; one that moves them moves them to the target of the pages.

    Raises:
        InvalidTask: see `Job.reprioritize`.
        MaybeChanged: see `FoundJobs.cancel`.
    """
    tally = _Tally(action.past, took)
    try:
        while (jobs := (yield from pages.next())) is not None:
            if action.moves:
                details = details._replace(when=f"={pages.target_ms}")
            while batch := list(islice(jobs, BATCH)):
                try:
                    if action is CANCEL:
                        yield from _cancel(batch, tally)
                    else:
                        yield from _change(batch, action, details, tally)
                except RedisError as error:
                    yield from pages.leave_out(batch[0].queue, error)
                    break
    except RedisError as error:
        raise tally.error(error, pages.missing) from error
    except BaseException as error:
        error.add_note(f"django-delayq: {tally}")
        raise
    if pages.missing:
        cause = next(iter(pages.missing.values()))
        raise tally.error(None, pages.missing) from cause
    return tally.changed()


class _Tally:
    """The result for the jobs so far."""

    def __init__(self, done: str, took: Took) -> None:
        self._done, self._took = done, took
        self.won = 0
        self.lost: Counter[State] = Counter()
        self.unknown: list[Job[Any]] = []

    def take(self, job: Job[Any], is_won: bool) -> None:
        self._took(job, is_won)
        if is_won:
            self.won += 1
        else:
            self.lost[job.state] += 1

    def fail(self, jobs: Sequence[Job[Any]], error: BaseException) -> None:
        """Note jobs whose change ended with an error."""
        if not isinstance(error, RedisError) or may_have_run(error):
            self.unknown += jobs

    def changed(self) -> Changed:
        return Changed(self.won, dict(self.lost))

    def __str__(self) -> str:
        text = f"{self.won:,} jobs are {self._done}"
        if self.lost:
            states = ", ".join(f"{n:,} {state}" for state, n in self.lost.items())
            text += f", {self.lost.total():,} were left alone ({states})"
        if self.unknown:
            names = f"{self.unknown[0].id} first, as no reply came"
            text += f", {len(self.unknown):,} may be {self._done} or not ({names})"
        return text

    def error(
        self, error: RedisError | None, missing: Mapping[str, Exception]
    ) -> MaybeChanged:
        """Make the error that says how far it came. ``error`` ended it; None: only some queues are missing."""
        why = [missing_line(missing)] if missing else []
        if error is not None:
            fault = describe_fault(error)
            why += [fault.what, fault.hint, f"{type(error).__name__}: {fault.message}"]
        return MaybeChanged(
            f"{self}; the other jobs are as they were. Make the same call again to continue. {' '.join(why)}",
            won=self.won,
            lost=self.lost,
            unknown=self.unknown,
            missing=missing,
        )


def _cancel(jobs: Sequence[Job[Any]], tally: _Tally) -> Steps[None]:
    """Cancel jobs of one queue, some in a call."""
    by_token: dict[str, Job[Any]] = {}
    for job in jobs:
        if job.token:
            by_token[job.token] = job
        else:
            # An element of somebody else, which no call can name.
            tally.take(job, False)
    for call in cancel_calls(jobs[0].queue, list(by_token.values())):
        try:
            reply: dict[str, Change | State] = yield call
        except BaseException as error:
            sent = call.script.named(call.args)["jobs"]
            tally.fail([by_token[str(token)] for token, _ in sent], error)
            raise
        named = [by_token[token] for token in reply]
        for job in named:
            job._take_cancelled(reply[job.token])
            tally.take(job, job.state is State.CANCELLED)
        yield from tell_cancelled(named)


def _change(
    jobs: Sequence[Job[Any]], action: Action, details: Details, tally: _Tally
) -> Steps[None]:
    """Change jobs of one queue, each in a call of its own, in one round trip."""
    try:
        results = yield from together(
            [_change_one(job, action, details) for job in jobs]
        )
    except BaseException as error:
        tally.fail(jobs, error)
        raise
    failure: Exception | None = None
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, Exception):
            failure = failure or result
            tally.fail([job], result)
        else:
            tally.take(job, result)
    if failure is not None:
        raise failure


def _change_one(job: Job[Any], action: Action, details: Details) -> Steps[bool]:
    if job.state is action.needless:
        return True
    if not job.token:
        return False
    # No job of many is waited for.
    return (yield from action.change(job, details, False))
