"""Leaves jobs to the commit of a transaction: a hook sends them, or the outbox has them as rows."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from django_delayq import conf
from django_delayq.core.queue_reads import counts
from django_delayq.jobs import outbox
from django_delayq.jobs.commit import Hook, is_awaited, promised
from django_delayq.jobs.draft import awaits_commit
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import Commit
from django_delayq.jobs.outcomes import queue_full
from django_delayq.jobs.run_once import alias_within
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import nothing_sent
from django_delayq.transport.run import run


def is_left(commit: Commit, task: str | None) -> bool:
    """Return whether a prepared job is left for a commit."""
    return is_awaited(commit, task) or commit.in_outbox


def leave_to_commits(
    jobs: Iterable[Job[Any]], send: Callable[[Sequence[Job[Any]]], object]
) -> None:
    """Have the next commit of its database ``send`` each job. Those that are for the outbox become rows.

    Raises:
        QueueFull, redis.exceptions.RedisError: a queue has no room for them, or cannot be asked. No job is left to a
            commit.
        InvalidSettings: they are to be rows, and the app with the table is not installed.
    """
    rows: list[tuple[Job[Any], Commit]] = []
    hooked: dict[str, list[Job[Any]]] = {}
    # A job that comes twice is one job.
    for job in {id(job): job for job in jobs}.values():
        commit = job.draft.commit
        if commit is None or job.awaits_commit:
            continue
        # A task with `once` does nothing when it runs again: what it sends after its commit must not get lost before that.
        is_once = alias_within() == commit.using
        if commit.in_outbox or (is_once and job.draft.extras.duplicates is None):
            rows.append((job, commit))
        else:
            hooked.setdefault(commit.using, []).append(job)
    # An error here must leave nothing behind, so all queues are asked before the first row and the first hook.
    for using, waiting in hooked.items():
        check_room(using, waiting)
    for job, commit in rows:
        outbox.needed(f"outbox=True of task {job.task!r}").write(job, commit)
    for using, waiting in hooked.items():
        hook = Hook(waiting, partial(send, waiting))
        for job in waiting:
            job.wait_for_commit(awaits_commit(hook))
        hook.join(using)


def check_room(using: str, jobs: Sequence[Job[Any]], *, beside: int = 0) -> None:
    """Ask queues of limited size whether jobs of an open transaction fit, as far as that can be known before its commit.

    ``beside`` is how many other jobs each queue has to hold then.

    A job with a unique key is not counted: it needs no room if another one holds the key.

    Raises:
        QueueFull: a queue has no room for its jobs.
        redis.exceptions.RedisError: it cannot be asked.
    """
    queues: dict[str, list[Job[Any]]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append(job)
    for queue, new in queues.items():
        found = conf.get_settings().find(queue)
        if found is None or found.max_jobs is None:
            continue
        new = [job for job in new if not job.unique]
        if not new:
            continue
        # Whatever became of the question, no job was sent.
        with nothing_sent():
            count = run(own_clients.of_thread(), counts(found.keys)).jobs
        coming = promised(using, queue) + beside
        if count + coming + len(new) > found.max_jobs:
            raise queue_full(queue, count, new, coming=coming)
