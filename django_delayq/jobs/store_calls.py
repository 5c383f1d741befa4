"""The calls that store prepared jobs: the arguments of `core.store` from a draft and the settings of its queue."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core import store as store_calls
from django_delayq.core.store import NewJob, Scheduled, tail_of
from django_delayq.jobs.draft import NO_EXTRAS, Draft
from django_delayq.jobs.job import Job
from django_delayq.transport.call import Call

#: Bytes of payload in one call of the schedule script, about.
SCHEDULE_BYTES = 1 << 20


def storing_one(
    queue: str, draft: Draft, is_promised: bool = False
) -> Call[list[Scheduled]]:
    """Return the call that stores one prepared job; it counts as sent from now on."""
    configured = conf.get_settings()
    # Almost every queue is found at once. Each job that is scheduled pays for what is here.
    settings = configured.queues.get(queue) or configured.queue(queue)
    if draft.extras is NO_EXTRAS:
        # Almost every job.
        new, has_batches = draft.new, False
    else:
        (new,), has_batches = written([draft])
    target = settings.target.unlimited if is_promised else settings.target
    call = store_calls.store(target, new, has_batches=has_batches)
    if draft.sent_ms is None:
        draft.sent_ms = boottime_ms()
        return call
    return _noted(call, [draft])


def storing_all(
    queue: str,
    drafts: Sequence[Draft],
    is_promised: bool = False,
) -> Call[list[Scheduled]]:
    """Return the call that stores prepared jobs of one queue; they count as sent from now on."""
    target = conf.get_settings().queue(queue).target
    if is_promised:
        target = target.unlimited
    new, has_batches = written(drafts)
    return _noted(store_calls.schedule(target, new, has_batches=has_batches), drafts)


def written(drafts: Sequence[Draft]) -> tuple[list[NewJob], bool]:
    """Return drafts as they are stored, with their tails, and whether one of them is in a batch."""
    has_batches = False
    new = [draft.new for draft in drafts]
    # Almost always none. `schedule_many` pays with each job for what is here, so one line looks at all of them.
    for i in [i for i, draft in enumerate(drafts) if draft.extras is not NO_EXTRAS]:
        priority, limit, wanted, follow, batch, _, expires_ms, since_ms = astuple(
            drafts[i].extras
        )
        has_batches = has_batches or batch != ""
        tail = tail_of(
            str(new[i].tail),
            priority,
            limit,
            notes_first=wanted is not None and wanted.max_wait_ms is not None,
            # Even a task whose key is free from the start on: Java may have its job, or it had another unique_until.
            may_go_behind=wanted is not None,
            has_on_dead=follow is not None and bool(follow.dead),
            batch=batch,
            expires_ms=expires_ms,
            since_ms=since_ms,
        )
        new[i] = new[i]._replace(tail=tail)
    return new, has_batches


def _noted(
    call: Call[list[Scheduled]], drafts: Sequence[Draft]
) -> Call[list[Scheduled]]:
    """Return the call, as a repeat if one of its jobs may have been sent before; note that all are sent now."""
    now_ms = boottime_ms()
    first_ms = now_ms
    is_repeat = False
    for draft in drafts:
        if draft.sent_ms is None:
            draft.sent_ms = now_ms
        else:
            is_repeat = True
            first_ms = min(first_ms, draft.sent_ms)
    if is_repeat:
        call = replace(call.again(), window_ms=call.window_ms - (now_ms - first_ms))
    return call


def most_in_a_call(job: Job[Any]) -> int:
    """Return how many jobs one call sends to its queue: never more than the queue may hold, or none would ever be stored."""
    settings = conf.get_settings().find(job.queue)
    limit = settings.max_jobs if settings else None
    if limit is None:
        return store_calls.SCHEDULE_BATCH
    # The callback of a batch takes a place.
    room = limit - 1 if job.draft.extras.batch else limit
    return max(1, min(store_calls.SCHEDULE_BATCH, room))
