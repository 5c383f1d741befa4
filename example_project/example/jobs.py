"""Describe and cancel the job whose id a row stores."""

from contextlib import suppress
from datetime import datetime
from typing import Any

from django_delayq import JobNotFound, State, get_job


def describe_job(job_id: str) -> dict[str, Any]:
    """Look at a job: its state, when it is due, how often it failed, and why."""
    try:
        job = get_job(job_id)
    except JobNotFound:
        # It ended a while ago; what it did is in the database.
        return {"id": job_id, "state": State.MISSING}
    return {
        "id": job.id,
        "queue": job.queue,
        "token": job.token,
        "state": job.state,
        "start_time": job.start_time,
        "attempts": job.attempts,
        "error": job.error and job.error.get("error"),
    }


def cancel_job(job_id: str) -> None:
    """Cancel a job that has nothing left to do, as its row already says.

    To be called after that row's commit: before it, a rollback would leave a row without a
    job. If this fails, or comes too late, the job runs and changes nothing.
    """
    with suppress(JobNotFound):
        get_job(job_id).cancel()


def lateness_ms(due: datetime | None, done: datetime | None) -> float | None:
    """Return in ms how late something was done, or None if it was not done yet."""
    return None if due is None or done is None else (done - due).total_seconds() * 1000
