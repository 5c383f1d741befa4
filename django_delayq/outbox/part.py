"""The app's part in scheduling, running and workers, as `jobs.outbox.Outbox` asks for it."""

from collections.abc import Callable
from typing import Any

from django_delayq.jobs.job import Job
from django_delayq.jobs.options import Commit
from django_delayq.outbox import inbox, row_writer
from django_delayq.outbox.thread import RelayThreads


class OutboxPart:
    """Stateless; one a process."""

    def write(self, job: Job[Any], commit: Commit) -> None:
        row_writer.write(job, commit)

    def run_once(
        self, job_id: str, using: str, call: Callable[[], Any], later: str
    ) -> Any:
        return inbox.run_once(job_id, using, call, later)

    def make_relay(self) -> RelayThreads:
        return RelayThreads()
