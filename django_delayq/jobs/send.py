"""Sends one prepared job to the server: now, or with the commit of the transaction."""

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.core.durability import Wait, durably
from django_delayq.core.states import State
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.caller_signals import task_of
from django_delayq.jobs.commit_hooks import is_left, leave_to_commits
from django_delayq.jobs.draft import NO_EXTRAS
from django_delayq.jobs.holders import meeting
from django_delayq.jobs.job import Job
from django_delayq.jobs.outcomes import (
    AGAIN,
    PREPARE,
    check_durable,
    explain,
    forget_sending,
    take,
    waiting_for,
)
from django_delayq.jobs.store_calls import storing_one
from django_delayq.signals import atell, job_scheduled, tell
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import arun, run
from django_delayq.transport.steps import Steps, aperform, perform

R = TypeVar("R")


def send(job: Job[R]) -> Job[R]:
    """Send a prepared job, now or with the commit of the transaction."""
    commit = job.draft.commit
    if commit is None or not is_left(commit, job.task):
        return send_now(job)
    try:
        leave_to_commits([job], send_promised)
    except RedisError as error:
        explain(error, [job])
        raise
    return job


def send_promised(jobs: Sequence[Job[Any]]) -> None:
    """Send the one job of a hook, whose transaction has been committed."""
    (job,) = jobs
    # It may have been withdrawn; or somebody sent it meanwhile, and that caller knows how it went.
    if job.is_unsent and job.state is not State.CANCELLED:
        send_now(job, is_promised=True)


def send_now(job: Job[R], *, is_promised: bool = False) -> Job[R]:
    """Send a prepared job now.

    ``is_promised`` says that a full queue takes the job all the same, because the caller has a promise that it runs.
    """
    draft, waiting = job.draft, None
    if draft.extras is NO_EXTRAS and not conf.get_settings().sharded:
        # Almost every job takes one call. As steps it would cost 5 % more processor time.
        sent_ms = draft.sent_ms
        try:
            call = storing_one(job.queue, draft, is_promised)
            take(job, run(own_clients.of_thread(), call)[0])
        except RedisError as error:
            failing = _failing(job, sent_ms, error, is_promised)
            perform(own_clients.of_thread, failing)
    else:
        waiting = perform(own_clients.of_thread, _storing(job, is_promised))
    if job.created and job_scheduled.receivers:
        tell(job_scheduled, task_of(job), job)
    if waiting is not None:
        check_durable(waiting, [job])
    return job


async def asend(job: Job[R]) -> Job[R]:
    """`send` on the event loop. Django's thread for the database owns its transaction, so that thread adds the hook.

    The event loop itself has no transaction. So the job is sent at once, unless its task or the call asks for a commit.
    """
    draft, waiting = job.draft, None
    if draft.commit is not None and draft.commit.is_written:
        return await sync_to_async(send)(job)
    if draft.extras is NO_EXTRAS and not conf.get_settings().sharded:
        sent_ms = draft.sent_ms
        try:
            call = storing_one(job.queue, draft)
            take(job, (await arun(await own_clients.of_loop(), call))[0])
        except RedisError as error:
            await aperform(own_clients.of_loop, _failing(job, sent_ms, error))
    else:
        waiting = await aperform(own_clients.of_loop, _storing(job))
    if job.created and job_scheduled.receivers:
        await atell(job_scheduled, task_of(job), job)
    if waiting is not None:
        check_durable(waiting, [job])
    return job


def _storing(job: Job[Any], is_promised: bool = False) -> Steps[Wait | None]:
    """Store a job that may have a unique key, may have to be durable, or goes to a queue that may have shards.

    Returns what says whether it is durable.
    """
    draft = job.draft
    sent_ms, waiting = draft.sent_ms, waiting_for(job)
    try:
        yield from shard_agreement.agreeing_on(job.queue)
        call = storing_one(job.queue, draft, is_promised)
        take(job, (yield from durably(call, waiting))[0])
        if not job.created and draft.extras.duplicates is not None:
            yield from meeting(job, draft.extras.duplicates, waiting, is_promised)
    except RedisError as error:
        yield from _failing(job, sent_ms, error, is_promised)
    if not job.created and draft.extras.duplicates is None:
        yield from job._refreshing()
    return waiting


def _failing(
    job: Job[Any],
    sent_ms: float | None,
    error: RedisError,
    is_promised: bool = False,
) -> Steps[NoReturn]:
    """Raise the error of a job that was sent, with a note on what became of it.

    ``sent_ms`` is when it was sent before this call.

    Raises:
        redis.exceptions.RedisError: ``error``.
        OtherShards: the server has refused the job, as its queue has got another number of shards.
    """
    forget_sending([job.draft], [sent_ms], error)
    if shard_agreement.is_refused(error):
        yield from shard_agreement.asking_why(job.queue)
    explain(error, [job], AGAIN if is_promised else PREPARE)
    raise error
