"""Cancels jobs: the calls, what is kept of each that does not run, and the signal."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from django_delayq import conf
from django_delayq.clock import epoch_ms
from django_delayq.core import change as change_calls
from django_delayq.core.change import Kept
from django_delayq.core.states import Change, State
from django_delayq.jobs import stored_results
from django_delayq.jobs.caller_signals import BY_CALL, Telling, task_of
from django_delayq.jobs.options import seconds
from django_delayq.signals import job_cancelled
from django_delayq.transport.call import Call
from django_delayq.transport.steps import Steps


class Cancelled(Protocol):
    """A handle of a job that is cancelled."""

    token: str
    task: str | None
    options: dict[str, Any] | None
    state: State


def cancel_calls(
    queue: str, jobs: Sequence[Cancelled]
) -> Iterator[Call[dict[str, Change | State]]]:
    """Return the calls that cancel jobs of a queue; those of a call share the search for them in Redisson's list."""
    return change_calls.cancel_many(
        conf.keys_of(queue),
        (job.token for job in jobs),
        keep_ended=conf.keep_ended(queue),
        kept=_kept_if_cancelled(jobs),
    )


def tell_cancelled(jobs: Sequence[Cancelled]) -> Steps[None]:
    """Send the signal of those that are cancelled.

    One may have been cancelled before: by a call whose reply was lost, and which sent no signal.
    """
    if job_cancelled.receivers:
        cancelled = [job for job in jobs if job.state is State.CANCELLED]
        yield Telling(job_cancelled, cancelled, {"reason": BY_CALL})


def _kept_if_cancelled(jobs: Iterable[Cancelled]) -> Kept:
    """Return for how long the records of jobs are kept, if these are cancelled before they run."""
    found = {job.token: kept_s * 1000 for job in jobs if (kept_s := _kept_s(job))}
    text = stored_results.result_text(
        State.CANCELLED, error="cancelled before it ran", at_ms=epoch_ms()
    )
    return Kept(text, {token: round(ttl_ms) for token, ttl_ms in found.items()})


def _kept_s(job: Cancelled) -> float | None:
    carried = job.options or {}
    if "keep_result" in carried:
        return seconds(carried["keep_result"])
    task = task_of(job)
    return None if task is None else seconds(task.options.keep_result)
