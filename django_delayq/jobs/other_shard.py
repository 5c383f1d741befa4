"""Sends a call to another shard of its queue, if the node of the shard that its job has drawn cannot be reached."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeVar

from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.jobs.commit_hooks import is_left
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.job import Job
from django_delayq.jobs.prepare import prepare
from django_delayq.jobs.send import asend, send
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import may_have_run, node_named_by
from django_delayq.transport.neighbours import Neighbours
from django_delayq.wire.delay import Delay

R = TypeVar("R")


def send_elsewhere(
    task: TaskDefinition,
    job: Job[R],
    error: RedisError,
    delay: Delay,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Job[R]:
    """Send a call to another shard, as the node of the shard that its job had drawn cannot be reached.

    Nobody has the id of ``job`` yet.

    Raises:
        redis.exceptions.RedisError: ``error``, if its job may be stored, or has to be in that shard; or that of the last
            shard.
    """
    tried: set[str] = set()
    while True:
        shards = _others(task, job, error, tried)
        if shards:
            near = _neighbours(error, shards).do(own_clients.of_thread())
            tried.update(shard.name for shard in compress(shards, near))
        if all(shard.name in tried for shard in shards):
            raise error
        while (other := prepare(task, delay, args, kwargs)).queue in tried:
            pass
        try:
            return send(other)
        except RedisError as again:
            job, error = other, again


async def asend_elsewhere(
    task: TaskDefinition,
    job: Job[R],
    error: RedisError,
    delay: Delay,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Job[R]:
    """`send_elsewhere` on the event loop."""
    tried: set[str] = set()
    while True:
        shards = _others(task, job, error, tried)
        if shards:
            near = await _neighbours(error, shards).ado(await own_clients.of_loop())
            tried.update(shard.name for shard in compress(shards, near))
        if all(shard.name in tried for shard in shards):
            raise error
        while (other := prepare(task, delay, args, kwargs)).queue in tried:
            pass
        try:
            return await asend(other)
        except RedisError as again:
            job, error = other, again


def _others(
    task: TaskDefinition, job: Job[Any], error: RedisError, tried: set[str]
) -> Sequence[conf.QueueSettings]:
    """Return the shards that a call may go to, ``tried`` or not; none: it has to stay. Adds its own to ``tried``."""
    settings, options = conf.get_settings(), task.options
    whole = settings.sharded.get(options.queue)
    if whole is None or options.limit is not None or options.unique:
        return ()
    if may_have_run(error) or node_named_by(error) is None or job.was_sent:
        return ()
    commit = job.draft.commit
    if commit is not None and is_left(commit, task.name):
        return ()
    tried.add(job.queue)
    return settings.parts_of(whole.name)


def _neighbours(error: RedisError, shards: Sequence[conf.QueueSettings]) -> Neighbours:
    """Return the question which shards lie on the node that cannot be reached."""
    return Neighbours(error, [shard.keys.queue.destination for shard in shards])
