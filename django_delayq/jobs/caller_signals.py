"""Sends the signals about jobs that no worker has to do with: what was scheduled, and what was cancelled, from here."""

from collections.abc import Sequence
from typing import Any

import msgspec
from redis import asyncio as aio
from redis.client import Redis

from django_delayq.exceptions import TaskNotFound
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.registry import get_task
from django_delayq.redaction import brief
from django_delayq.signals import JobSignal, atell, tell

#: Why a job was cancelled that no task has cancelled.
BY_CALL = "by a call of cancel()"


def task_of(job: Any) -> TaskDefinition | None:
    """Return the task of a job, None if this process does not know it."""
    if job.task is None:
        return None
    try:
        return get_task(job.task)
    except TaskNotFound:
        return None


@brief
class Telling(msgspec.Struct, frozen=True):
    """Tell something of jobs: a step of an operation, see `Request`."""

    signal: JobSignal
    jobs: Sequence[Any]
    named: dict[str, Any] = {}

    def do(self, client: Redis) -> None:
        for job in self.jobs:
            tell(self.signal, task_of(job), job, **self.named)

    async def ado(self, client: aio.Redis) -> None:
        for job in self.jobs:
            await atell(self.signal, task_of(job), job, **self.named)
