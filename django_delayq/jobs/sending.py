"""Sends one prepared job to the server, or to another shard if the node of its own cannot be reached."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.errors import may_have_run, node_named_by, nothing_sent
from django_delayq.calls.neighbours import Neighbours
from django_delayq.calls.running import arun, run
from django_delayq.calls.steps import Steps, aperform, perform
from django_delayq.clients.clients import own_clients
from django_delayq.delivery.durability import durably
from django_delayq.delivery.states import State
from django_delayq.jobs import sharding
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.draft import NO_EXTRAS
from django_delayq.jobs.holders import meeting
from django_delayq.jobs.job import Job
from django_delayq.jobs.leaving import is_left, leave_to_commits
from django_delayq.jobs.outcomes import (
    AGAIN,
    PREPARE,
    check_durable,
    explain,
    forget_sending,
    take,
    waiting_for,
)
from django_delayq.jobs.storing import storing_one
from django_delayq.jobs.telling import task_of
from django_delayq.signals import atell, job_scheduled, tell

R = TypeVar("R")

# `send` and `asend` are written twice: as steps they would cost `schedule` another 5 % of its processor time.


def send(job: Job[R]) -> Job[R]:
    """Send a prepared job, now or with the commit of the transaction."""
    commit = job.draft.commit
    if commit is not None and is_left(commit, job.task):
        try:
            leave_to_commits([job], send_promised)
        except RedisError as error:
            explain(error, [job])
            raise
        return job
    return send_now(job)


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
    draft = job.draft
    sent_ms = draft.sent_ms
    waiting = None if draft.extras is NO_EXTRAS else waiting_for(job)
    try:
        client = connected(own_clients.of_thread)
        if not sharding.is_agreed(job.queue):
            perform(client, sharding.agreeing_on(job.queue))
        call = storing_one(job.queue, draft, is_promised)
        if waiting is None:
            stored = run(client, call)
        else:
            stored = perform(client, durably(call, waiting))
        take(job, stored[0])
        if not job.created and draft.extras.duplicates is not None:
            met = meeting(job, draft.extras.duplicates, waiting, is_promised)
            perform(client, met)
    except RedisError as error:
        forget_sending([draft], [sent_ms], error)
        if sharding.is_refused(error):
            perform(own_clients.of_thread, sharding.asking_why(job.queue))
        explain(error, [job], AGAIN if is_promised else PREPARE)
        raise
    if job.created:
        if job_scheduled.receivers:
            tell(job_scheduled, task_of(job), job)
    elif draft.extras.duplicates is None:
        job.refresh()
    if waiting is not None:
        check_durable(waiting, [job])
    return job


async def asend(job: Job[R]) -> Job[R]:
    """`send` on the event loop. Django's thread for the database owns its transaction, so that thread adds the hook.

    The event loop itself has no transaction. So the job is sent at once, unless its task or the call asks for a commit.
    """
    draft = job.draft
    if draft.commit is not None and draft.commit.is_written:
        return await sync_to_async(send)(job)
    sent_ms = draft.sent_ms
    waiting = None if draft.extras is NO_EXTRAS else waiting_for(job)
    try:
        client = await own_clients.of_loop()
        if not sharding.is_agreed(job.queue):
            await aperform(client, sharding.agreeing_on(job.queue))
        call = storing_one(job.queue, draft)
        if waiting is None:
            stored = await arun(client, call)
        else:
            stored = await aperform(client, durably(call, waiting))
        take(job, stored[0])
        if not job.created and draft.extras.duplicates is not None:
            await aperform(client, meeting(job, draft.extras.duplicates, waiting))
    except RedisError as error:
        forget_sending([draft], [sent_ms], error)
        if sharding.is_refused(error):
            await aperform(own_clients.of_loop, sharding.asking_why(job.queue))
        explain(error, [job])
        raise
    if job.created:
        if job_scheduled.receivers:
            await atell(job_scheduled, task_of(job), job)
    elif draft.extras.duplicates is None:
        await job.arefresh()
    if waiting is not None:
        check_durable(waiting, [job])
    return job


def send_elsewhere(
    task: TaskDefinition, job: Job[R], error: RedisError, make: Callable[[], Job[R]]
) -> Job[R]:
    """Send a call to another shard, as the node of the shard that its job had drawn cannot be reached.

    ``make`` makes a job of the same call. Nobody has the id of ``job`` yet.

    Raises:
        redis.exceptions.RedisError: ``error``, if its job may be stored, or has to be in that shard; or that of the last
            shard.
    """
    tried: set[str] = set()
    while True:
        drawing = _drawing_anew(task, job, error, make, tried)
        other: Job[R] | None = perform(own_clients.of_thread, drawing)
        if other is None:
            raise error
        try:
            return send(other)
        except RedisError as again:
            job, error = other, again


async def asend_elsewhere(
    task: TaskDefinition, job: Job[R], error: RedisError, make: Callable[[], Job[R]]
) -> Job[R]:
    """`send_elsewhere` on the event loop."""
    tried: set[str] = set()
    while True:
        drawing = _drawing_anew(task, job, error, make, tried)
        other: Job[R] | None = await aperform(own_clients.of_loop, drawing)
        if other is None:
            raise error
        try:
            return await asend(other)
        except RedisError as again:
            job, error = other, again


def _drawing_anew(
    task: TaskDefinition,
    job: Job[R],
    error: RedisError,
    make: Callable[[], Job[R]],
    tried: set[str],
) -> Steps[Job[R] | None]:
    """Return a new job of a call in a shard that may answer; None: it has to stay. ``tried`` are those that do not."""
    settings, options = conf.get_settings(), task.options
    whole = settings.sharded.get(options.queue)
    if whole is None or options.limit is not None or options.unique:
        return None
    if may_have_run(error) or node_named_by(error) is None or job.was_sent:
        return None
    commit = job.draft.commit
    if commit is not None and is_left(commit, task.name):
        return None
    tried.add(job.queue)
    shards = settings.parts_of(whole.name)
    names = [shard.keys.queue.destination for shard in shards]
    lies_there: list[bool] = yield Neighbours(error, names)
    tried.update(shard.name for shard in compress(shards, lies_there))
    if all(shard.name in tried for shard in shards):
        return None
    while (other := make()).queue in tried:
        pass
    return other


def connected(get_client: Callable[[], Redis]) -> Redis:
    # A new client connects at once.
    with nothing_sent():
        return get_client()
