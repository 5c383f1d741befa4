"""A new job meets the job that holds its unique key, and changes it as its task or the call says."""

from typing import Any

from msgspec.structs import replace

from django_delayq import conf
from django_delayq.core import replace as replace_calls
from django_delayq.core.durability import Wait, durably
from django_delayq.core.states import Change, State
from django_delayq.exceptions import DecodeError, MaybeScheduled
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.duplicates import OnHolder
from django_delayq.jobs.job import Job
from django_delayq.jobs.outcomes import take
from django_delayq.jobs.store_calls import storing_one, written
from django_delayq.transport.steps import Steps

#: So often a call tries to change the job that holds its unique key, if that begins or goes each time.
MOST_MEETINGS = 20


def meeting(
    job: Job[Any],
    wanted: OnHolder,
    waiting: Wait | None,
    is_promised: bool = False,
) -> Steps[None]:
    """Do to the job that holds the unique key of this one what this call asks for.

    Raises:
        MaybeScheduled: each of many times, that job had begun, or had gone, when it was to be changed; or it is on its
            way to another server, or others follow it and it cannot be read here.
        EncodeError: with what stays of that job, this one is larger than MAX_PAYLOAD_BYTES.
        QueueFull: it has gone, and the queue has no room for this one.
    """
    for _ in range(MOST_MEETINGS):
        if (yield from _changing_holder(job, wanted, waiting)):
            return
        call = storing_one(job.queue, job.draft, is_promised)
        take(job, (yield from durably(call, waiting))[0])
        if job.created:
            return
    raise MaybeScheduled(
        f"job {job.queue}:{job.draft.new.token} of {job.task!r} is not stored: the job that holds its unique key"
        f" {job.unique!r} started or ended {MOST_MEETINGS} times while this call tried to change it. Pass"
        " error.unsent to schedule_many",
        [job],
    )


def _changing_holder(
    job: Job[Any], wanted: OnHolder, waiting: Wait | None
) -> Steps[bool]:
    """Change the job that holds the unique key, unless it runs or has gone; return whether that is done."""
    draft, settings = job.draft, conf.get_settings().queue(job.queue)
    if wanted.replaces and draft.extras.expires_ms:
        # Its own start time may be later than that of the job, which it keeps.
        draft = replace(draft, extras=replace(draft.extras, since_ms=draft.asked_ms))
    linked: replace_calls.Linked | None = None
    for _ in range(MOST_MEETINGS):
        payload, call = b"", None if linked is None else _opened(job, settings, linked)
        if wanted.replaces:
            payload = envelopes.signed_as(
                draft.new.payload,
                job.token,
                settings,
                conf.get_keyring(),
                linked=call,
                since_ms=draft.extras.since_ms,
            )
        if call is not None:
            # The tail says whether others follow a dead letter.
            extras = replace(draft.extras, follow=call.follow)
            draft = replace(draft, extras=extras)
        new = written([draft])[0][0]
        reply = yield from durably(
            replace_calls.replace(
                settings.keys,
                job.token,
                new,
                payload=payload,
                moves=wanted.moves,
                max_wait_ms=wanted.max_wait_ms,
                linked=b"" if linked is None else linked.mac,
            ),
            waiting,
        )
        if not isinstance(reply, replace_calls.Linked):
            break
        linked = reply
    else:
        return False
    if reply.outcome is State.HELD:
        raise MaybeScheduled(
            f"job {job.queue}:{draft.new.token} of {job.task!r} is not stored: the job that holds its unique key"
            f" {job.unique!r} is being moved to another server by delayq_export and delayq_import. Schedule this one"
            " there, or here once the move is done",
            [job],
        )
    if reply.seen is None:
        return False
    job.replaced = reply.outcome is Change.REPLACED
    job._take(reply.seen)
    return True


def _opened(
    job: Job[Any], settings: conf.QueueSettings, linked: replace_calls.Linked
) -> envelopes.Envelope:
    """Read the call of a job that holds the unique key of another.

    Raises:
        MaybeScheduled: it cannot be read.
    """
    try:
        return envelopes.open_payload(
            linked.payload,
            job.queue,
            conf.get_keyring(),
            settings.payload_codec,
            decrypts=False,
        )
    except DecodeError as error:
        raise MaybeScheduled(
            f"job {job.queue}:{job.draft.new.token} of {job.task!r} is not stored: other jobs may follow {job.id}, which holds its"
            f" unique key {job.unique!r}, and would be lost, because that job cannot be read here: {error}. Schedule"
            " this one"
            " where its key is known, or cancel that job",
            [job],
        ) from error
