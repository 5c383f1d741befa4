"""The payload of a leased job: reading it, and holding a job that this process cannot read or run."""

from typing import Any

from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.core.claim import Leased
from django_delayq.core.hold import (
    MAX_HELD_CALL,
    MAX_HELD_NAME,
    Hold,
    Shape,
    can_be_held,
)
from django_delayq.core.reasons import Kind, Reason
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    InvalidArguments,
    NotSigned,
    TaskNotFound,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import Envelope, Follow
from django_delayq.jobs.exception_text import text_of
from django_delayq.jobs.options import TaskOptions
from django_delayq.jobs.registry import get_handler, get_task
from django_delayq.logs import get_log
from django_delayq.queues.reading import read as decode
from django_delayq.wire import signatures

logger = get_log("django_delayq.worker")

#: A payload of ours up to this size is decoded in some 0.1 ms, which an event loop can afford.
QUICK_BYTES = 16_384

#: The call that a payload asks for. A bare tuple, because each job makes one.
Read = tuple[
    TaskDefinition,
    TaskOptions,
    list[Any],
    dict[str, Any],
    Follow | None,
    dict[str, str],
    int,
    str,
]


class DoubleFound(DelayqError):
    """Raised while a payload is read if its job has already run."""


def read_if_quick(queue: QueueSettings, leased: Leased) -> Read | BaseException | None:
    """Do as `read` if that takes a fraction of a ms: the payload is small and needs no codec. Else return None."""
    payload = leased.payload
    if (
        len(payload) > QUICK_BYTES
        or leased.is_foreign
        or not payload.startswith(signatures.JOB_START)
    ):
        return None
    try:
        # No codec is passed: a payload that begins like this was written without one.
        return _call_of(envelopes.open_payload(payload, queue.name, get_keyring()))
    except BaseException as error:
        return error


def read(queue: QueueSettings, leased: Leased) -> Read | BaseException:
    """Decode the payload and find the task; return both, or the error, and change nothing.

    This may take long, and may run the project's own codec: never call it on the claim loop.
    """
    try:
        if leased.is_foreign:
            return _read_foreign(queue, leased)
        if len(leased.payload) > QUICK_BYTES:
            _check_readable(leased.payload)
        return _call_of(
            envelopes.open_payload(
                leased.payload, queue.name, get_keyring(), queue.payload_codec
            )
        )
    except BaseException as error:
        # Every exception is caught: a project's codec may raise anything, and must not end the process again and
        # again, with every other job that is leased here.
        return error


def _read_foreign(queue: QueueSettings, leased: Leased) -> Read:
    why = ""
    try:
        envelope = _find_job(queue, leased)
    except NotSigned as error:
        why = f". It looks like a job, but {error}"
    else:
        if envelope is not None:
            return _call_of(envelope)
    handler = get_handler(queue.name)
    if handler is None:
        raise TaskNotFound(
            f"an element that is not one of our jobs lies in queue {queue.name!r}, which has no handler;"
            f" register one with @queue_handler({queue.name!r}){why}",
            task="",
        )
    most, size = get_settings().max_foreign_bytes, len(leased.payload)
    if size > most:
        raise DecodeError(
            f"a foreign payload of {size:,} bytes, more than DELAYQ['MAX_FOREIGN_BYTES'], {most:,}, was not decoded",
            leased.payload,
        )
    value = decode(queue.payload_codec, leased.payload, queue.name)
    return handler, handler.options, [value], {}, None, {}, 0, ""


def _find_job(queue: QueueSettings, leased: Leased) -> Envelope | None:
    """Return the job that somebody has offered again, under an old token or one that no script can find.

    Raises:
        NotSigned: the payload only looks like a job.
        DoubleFound: the job has just run.
    """
    # In every codec, the name of the token's field begins like this.
    if b"delay" not in leased.payload:
        return None
    try:
        _check_readable(leased.payload)
        envelope = envelopes.open_payload(
            leased.payload, queue.name, get_keyring(), queue.payload_codec
        )
    except NotSigned:
        raise
    except DecodeError:
        return None
    if not queue.is_shared and not leased.came_in_frame:
        raise NotSigned(
            "nobody in this project put it there, and only queues with REDISSON accept jobs from elsewhere"
        )
    if leased.is_known:
        raise DoubleFound(f"job of {envelope.task!r} ended a moment ago")
    return envelope


def _check_readable(payload: bytes) -> None:
    # Anybody may write a payload that looks like a job. A job as we write it needs no codec and takes little time.
    settings = get_settings()
    most = max(settings.max_foreign_bytes, settings.max_payload_bytes)
    if not envelopes.is_readable(payload, most):
        raise DecodeError(
            f"a payload of {len(payload):,} bytes, more than both DELAYQ['MAX_FOREIGN_BYTES'] and"
            f" DELAYQ['MAX_PAYLOAD_BYTES'], was not decoded",
            payload,
        )


def _call_of(envelope: Envelope) -> Read:
    task = get_task(envelope.task)
    options = task.options
    if envelope.options:
        options = options.with_carried(envelope.options)
    if envelope.flags & envelopes.IS_ENCRYPTED and not options.encrypt:
        # It was scheduled on another queue, or before encrypt=True was taken away.
        options = options.changed(encrypt=True)
    return (
        task,
        options,
        envelope.args,
        envelope.kwargs,
        envelope.follow,
        envelope.headers,
        envelope.since,
        envelope.later,
    )


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
