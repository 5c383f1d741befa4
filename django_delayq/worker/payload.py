"""What call a leased payload asks for: our own jobs, and elements of others for the handler of their queue."""

from typing import Any

from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.delivery.claiming import Leased
from django_delayq.exceptions import DecodeError, DelayqError, NotSigned, TaskNotFound
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import Envelope, Follow
from django_delayq.jobs.options import TaskOptions
from django_delayq.jobs.registry import get_handler, get_task
from django_delayq.queues.reading import read as decode
from django_delayq.wire import signing

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
        or not payload.startswith(signing.JOB_START)
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
