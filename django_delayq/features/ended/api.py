"""`ended_jobs`: the most recent ended jobs of a queue, and how they ended."""

from datetime import UTC, datetime
from typing import NamedTuple

from django_delayq import conf
from django_delayq.core.bounds import MOST_ENDED
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSearch
from django_delayq.features.ended.calls import (
    ENDED_BATCH,
    NONE,
    EndRecord,
    read_ended,
    read_records,
)
from django_delayq.jobs.answers import asking, complete
from django_delayq.redaction import show
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps


class EndedJob(NamedTuple):
    """How one job ended.

    Example::

        (last,) = ended_jobs("mail", limit=1)
        print(last.outcome, last.duration_ms)
    """

    #: Id for `get_job`, which finds dead letters, quarantined jobs, and jobs with a kept result.
    id: str
    queue: str
    #: Name of its task; None if unknown.
    task: str | None
    #: ``SUCCEEDED``, ``CANCELLED``, ``EXPIRED``, ``DEAD`` or ``QUARANTINED``.
    outcome: State
    #: When it ended, by the server's clock.
    ended_at: datetime
    #: How long after it could run its last attempt began, ms; None: it did not run.
    lateness_ms: float | None
    #: Duration of its last attempt, ms; None: it did not run.
    duration_ms: float | None
    #: Number of attempts; None if unknown.
    attempts: int | None
    #: First line of its error, or the reason why it did not run; else empty.
    error: str


@performed
def ended_jobs(
    queue: str | None = None, *, limit: int = ENDED_BATCH
) -> Steps[list[EndedJob]]:
    """Return the jobs of a queue that ended last, the newest first; by default those of all queues in the settings.

    Each queue keeps ``KEEP_ENDED`` of them. Workers store them within 0.3 s; a worker that is killed loses those that
    it has not stored yet.

    Example::

        for job in ended_jobs("mail", limit=20):
            print(job.ended_at, job.task, job.outcome, job.error)

    Raises:
        QueueNotFound: the queue is not configured.
        InvalidSearch: ``limit`` is not a number of jobs.
        PartialAnswer: some queues did not answer; ``found`` has the jobs of the others.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidSearch(f"limit={show(limit)}: give a number of jobs, 1 or more")
    queues = conf.get_settings().queues_of(queue)
    answers = yield from asking(queues, (_reading_one(each, limit) for each in queues))
    found = [
        _ended(each.name, record)
        for each, stored in answers.of(queues)
        for record in read_records(stored)
    ]
    found.sort(key=lambda job: job.ended_at, reverse=True)
    return complete(found[:limit], answers.missing)


aended_jobs = aperformed(ended_jobs)


def _reading_one(queue: conf.QueueSettings, limit: int) -> Steps[list[bytes]]:
    stored: list[bytes] = []
    while len(stored) < min(limit, MOST_ENDED):
        # What is added between two calls shifts the others, so a page may begin with what the last one ended with.
        count = min(limit - len(stored), ENDED_BATCH)
        page = yield read_ended(queue.keys, first=len(stored), count=count)
        stored += page.stored
        if len(page.stored) < count:
            break
    return stored


def _ended(queue: str, record: EndRecord) -> EndedJob:
    return EndedJob(
        f"{queue}:{record.token}",
        queue,
        record.task or None,
        record.outcome,
        datetime.fromtimestamp(record.ended_ms / 1000, UTC),
        _number(record.lateness_ms),
        _number(record.duration_ms),
        None if record.attempts == NONE else record.attempts,
        record.error,
    )


def _number(value: float) -> float | None:
    return None if value == NONE else round(value, 1)
