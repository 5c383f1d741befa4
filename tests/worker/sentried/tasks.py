"""Tasks that say too much, and one that says nothing more."""

import logging
import os
import signal

import sentry_sdk

from django_delayq import Backoff, current_job, delayed_task

logger = logging.getLogger("shop")


class Declined(Exception):
    """What the tasks raise."""


@delayed_task(sensitive=("token",), max_attempts=3, backoff=Backoff(base=0, jitter=0))
def charge(order: int, token: str) -> None:
    job = current_job()
    assert job is not None
    body = {"order": order, "token": token}
    logger.info("charging with %s", token)
    sentry_sdk.set_extra("body", body)
    with sentry_sdk.start_span(op="http.client", name=f"POST /?token={token}") as span:
        span.set_data("body", body)
    error = Declined(f"order {order}, attempt {job.attempts + 1}: {body}")
    error.add_note(f"the token begins with {token[:60]}")
    raise error


@delayed_task(max_attempts=1)
def decline(order: int) -> None:
    raise Declined(f"order {order}")


@delayed_task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
