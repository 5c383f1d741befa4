"""Changing all jobs that a search finds: one by one, each atomically, with a count of how that went.

The search reads a page, the jobs of it are changed some hundred at a time, and nothing is kept of them but the count.
So memory is bounded, however many there are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.errors import may_have_run
from django_delayq.calls.steps import Steps
from django_delayq.calls.together import together
from django_delayq.delivery import changing
from django_delayq.delivery.states import GRAVES, Change, State
from django_delayq.exceptions import MaybeChanged
from django_delayq.faults import describe_fault
from django_delayq.jobs.answers import missing_line
from django_delayq.jobs.job import Job, kept_if_cancelled
from django_delayq.jobs.telling import BY_CALL, Telling
from django_delayq.signals import job_cancelled
from django_delayq.wire.delay import parse_delay

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


def cancelling(pages: Pages, took: Took = _ignore) -> Steps[Changed]:
    """Cancel jobs. Those of one call share the search for them in Redisson's list."""
    return _changing(pages, "cancelled", _cancel_batch, took)


def rescheduling(pages: Pages, took: Took = _ignore) -> Steps[Changed]:
    """Move jobs to the target of the pages."""
    move = _one_by_one(lambda job: _move(job, pages.target_ms))
    return _changing(pages, "rescheduled", move, took)


def running_now(pages: Pages, took: Took = _ignore) -> Steps[Changed]:
    """Make jobs due now."""
    return _changing(pages, "due now", _one_by_one(_run_now), took)


def retrying(pages: Pages, took: Took = _ignore) -> Steps[Changed]:
    """Retry dead letters and quarantined jobs."""
    return _changing(pages, "retried", _one_by_one(_retry), took)


def reprioritizing(pages: Pages, priority: int, took: Took = _ignore) -> Steps[Changed]:
    """Give jobs another priority.

    Raises:
        InvalidTask: see `Job.reprioritize`.
    """
    change = _one_by_one(lambda job: _reprioritize(job, priority))
    return _changing(pages, "reprioritized", change, took)


def discarding(pages: Pages, took: Took = _ignore) -> Steps[Changed]:
    """Delete dead letters and quarantined payloads."""
    return _changing(pages, "discarded", _one_by_one(_discard), took)


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


_Attempt = Callable[[Sequence[Job[Any]], _Tally], Steps[None]]


def _changing(pages: Pages, done: str, attempt: _Attempt, took: Took) -> Steps[Changed]:
    tally = _Tally(done, took)
    try:
        while (jobs := (yield from pages.next())) is not None:
            while batch := list(islice(jobs, BATCH)):
                try:
                    yield from attempt(batch, tally)
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


def _cancel_batch(jobs: Sequence[Job[Any]], tally: _Tally) -> Steps[None]:
    by_token: dict[str, Job[Any]] = {}
    for job in jobs:
        if job.token:
            by_token[job.token] = job
        else:
            # An element of somebody else, which no call can name.
            tally.take(job, False)
    keys = conf.keys_of(jobs[0].queue)
    keep = conf.keep_ended(jobs[0].queue)
    kept = kept_if_cancelled(by_token.values())
    for call in changing.cancel_many(keys, by_token, keep_ended=keep, kept=kept):
        try:
            reply: dict[str, Change | State] = yield call
        except BaseException as error:
            # Behind the first three, every other of its arguments is a token.
            tally.fail([by_token[str(token)] for token in call.args[3::2]], error)
            raise
        for token, change in reply.items():
            job = by_token[token]
            job.state = State.UNKNOWN if change is Change.NOTED else State(change)
            tally.take(job, job.state is State.CANCELLED)
        if job_cancelled.receivers:
            told = [by_token[token] for token in reply]
            told = [job for job in told if job.state is State.CANCELLED]
            yield Telling(job_cancelled, told, {"reason": BY_CALL})


def _one_by_one(operation: Callable[[Job[Any]], Steps[bool]]) -> _Attempt:
    def attempt(jobs: Sequence[Job[Any]], tally: _Tally) -> Steps[None]:
        try:
            results = yield from together([operation(job) for job in jobs])
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

    return attempt


def _move(job: Job[Any], target_ms: int) -> Steps[bool]:
    if not job.token:
        return False
    return (yield from job._moving(f"={target_ms}"))


def _reprioritize(job: Job[Any], priority: int) -> Steps[bool]:
    if not job.token:
        return False
    return (yield from job._reprioritizing(priority))


def _run_now(job: Job[Any]) -> Steps[bool]:
    if job.state is State.DUE:
        return True
    if not job.token:
        return False
    return (yield from job._moving(parse_delay(0)))


def _retry(job: Job[Any]) -> Steps[bool]:
    if job.state not in GRAVES:
        return False
    call = changing.replay(job._keys, [job.token], state=job.state)
    return (yield from _unless_gone(job, call))


def _discard(job: Job[Any]) -> Steps[bool]:
    if job.state not in GRAVES:
        return False
    call = changing.discard(job._keys, [job.token], state=job.state)
    return (yield from _unless_gone(job, call))


def _unless_gone(job: Job[Any], call: Any) -> Steps[bool]:
    """Make a call that takes a job out of its grave. If another process was first, ask where the job is."""
    if (yield call):
        return True
    yield from job._refreshing()
    return False
