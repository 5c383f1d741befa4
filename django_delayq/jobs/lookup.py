"""Finds a job by its id, and makes the handles of jobs that were found."""

from typing import Any

from django_delayq import conf
from django_delayq.core import bounds
from django_delayq.core.search_calls import Found
from django_delayq.core.states import State
from django_delayq.exceptions import JobNotFound
from django_delayq.jobs import stored_results
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import is_unicode
from django_delayq.redaction import show
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps


@performed
def get_job(job_id: str) -> Steps[Job[Any]]:
    """Find a job by its id.

    Example::

        job = get_job(order.job_id)
        print(job.state, job.start_time)

    Raises:
        JobNotFound: no job has this id, or it is not an id at all.
        QueueNotFound: its queue is not configured.
    """
    job = handle_of(job_id)
    if (yield from job._looking()) is State.MISSING:
        raise JobNotFound(
            f"no job has the id {show(job.id)}; it ended more than {bounds.ENDED_MS // 1000} s ago, its transaction has not"
            " committed, or it never existed"
        )
    return job


aget_job = aperformed(get_job)


def handle_of(job_id: str) -> Job[Any]:
    queue, colon, token = (
        job_id.rpartition(":") if isinstance(job_id, str) else ("", "", "")
    )
    if not colon or not queue or not token or not is_unicode(job_id):
        raise JobNotFound(
            f"{show(job_id)} is not a job id; one looks like 'default:0Vb3-…', as Job.id returns it"
        )
    if job_id != job_id.strip():
        raise JobNotFound(
            f"{show(job_id)} is not a job id: leave out the space around it"
        )
    return Job(conf.get_settings().queue(queue).name, token, None, [], {})


def job_of(queue: str, found: Found) -> Job[Any]:
    """Return the handle of what a search has found; its token is empty if the element has no id."""
    job: Job[Any] = Job(queue, found.token, None, [], {})
    job.state, job.start_time_ms = found.state, found.due_ms
    job.attempts, job.kills = found.attempts, found.kills
    job.error = stored_results.read_error(found.error, found.token)
    job.unique, job.priority = found.unique, found.priority
    job._read(found.payload)
    return job
