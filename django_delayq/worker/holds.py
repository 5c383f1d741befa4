"""What a job is held for that this process cannot run: its task, its arguments, its key, format or codec.

Each function returns the `Hold` of a job; None: it cannot be held.
"""

from typing import Any

from django_delayq.conf import get_settings
from django_delayq.delivery.holding import (
    MAX_HELD_CALL,
    MAX_HELD_NAME,
    Hold,
    Shape,
    can_be_held,
)
from django_delayq.delivery.reasons import Kind, Reason
from django_delayq.exceptions import (
    DelayqError,
    InvalidArguments,
    NotSigned,
    TaskNotFound,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.exception_text import text_of
from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")

#: How many keys, formats and codecs that this process lacks are logged.
MOST_TOLD = 100
# Each queue with what it lacks, as far as that was logged.
_told: set[tuple[str, str]] = set()


def of_task(error: TaskNotFound) -> Hold | None:
    """Hold a job for a worker that knows its task, if the settings allow it and the name can be held."""
    if error.task is None:
        return None
    return _for_code(Kind.TASK, error.task, error, MAX_HELD_NAME)


def of_call(
    task: TaskDefinition,
    error: InvalidArguments,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Hold | None:
    """Hold a job whose arguments its function does not take: other code may have sent it, and may run it."""
    shape = Shape(task.name, len(args), tuple(kwargs))
    return _for_code(Kind.CALL, shape.held_name, error, MAX_HELD_CALL)


def of_key(queue: str, payload: bytes, error: NotSigned) -> Hold | None:
    """Hold a job, without a time limit, for a worker that has the key, the format or the codec to verify it."""
    # A foreign codec may yield a key id that cannot be sent to the server.
    if not error.missing or not can_be_held(error.missing):
        return None
    what, _, which = error.missing.partition(" ")
    if what == Kind.CODEC:
        which = error.missing.removeprefix(envelopes.OTHER_CODEC)
    if what == Kind.KEY and envelopes.shown_key(payload) != which.encode():
        # It has two signatures; we write only one. `hold.lua` would read the first and take the job as newly signed.
        return None
    _log_missing(queue, error)
    return Hold(Reason(what, which), text_of(error))


def _for_code(kind: Kind, name: str, error: DelayqError, most: int) -> Hold | None:
    """Hold a job for a worker with other code, if the settings allow it and the name can be held."""
    hold_s = get_settings().worker.hold_unknown_s
    if not can_be_held(name, most) or not hold_s:
        return None
    return Hold(Reason(kind, name), text_of(error), round(hold_s * 1000))


def _log_missing(queue: str, error: NotSigned) -> None:
    # Anybody who can write to the queue can make up more of them.
    if (queue, error.missing) in _told or len(_told) >= MOST_TOLD:
        return
    _told.add((queue, error.missing))
    hint = "Start workers of the version that wrote them"
    if error.missing.startswith(envelopes.OTHER_CODEC):
        hint = "Set CODEC and REDISSON of the queue to what they were when these jobs were scheduled, until they have run"
    elif error.missing.startswith("key "):
        hint = (
            "If the secret is one of this project's, add it to DELAYQ['KEYS'] if that is set, else to"
            " SECRET_KEY_FALLBACKS; or sign the jobs anew where it is known, with manage.py delayq_resign. If not,"
            " another project may use this server, with the same queue names"
        )
    logger.error(
        "queue %s holds jobs until a worker comes that has the %s: %s. %s",
        queue,
        error.missing,
        error,
        hint,
    )
