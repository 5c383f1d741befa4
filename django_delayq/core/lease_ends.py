"""The end of a lease: the job has ended, is to be repeated, will not run again, or has not begun."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from django_delayq.core.claim import Leased
from django_delayq.core.followers import NOTHING, Following
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.redaction import brief
from django_delayq.transport.call import Argument, Call


def slot_keys(keys: DeliveryKeys, *names: str) -> dict[str, str]:
    """Return the keys with which the end of a lease frees its slots: some that all ends need, and those named here.

    A call without them costs nothing for limits. With them it wakes the jobs that wait for a slot.
    """
    names = ("slots", "paces", *names)
    return {name: keys.key(name) for name in names}


#: The keys that the end of a lease needs beside its own, where it does not always write to them.
_FOR_WAITERS = (
    "held",
    "held_tasks",
    "retries",
    "returned",
    "ranked",
    "control",
    "channel",
    "batches",
)


# Each job makes one, which takes a fifth of the time of a NamedTuple.
@brief
class Done(msgspec.Struct, gc=False):
    """One job that ended, for `acknowledge`."""

    token: str
    fence: bytes
    #: How long its result is kept; None: its result is not kept.
    result_ttl_ms: int | None = None
    result: bytes = b""


def acknowledge(
    keys: DeliveryKeys,
    jobs: Sequence[Done],
    *,
    state: State = State.SUCCEEDED,
    has_slots: bool = False,
    following: Following | None = None,
) -> Call[list[int]]:
    """End jobs, and store those that follow them; returns the indexes of those whose lease was lost.

    If there are forwards among these, now (epoch ms) stands behind the indexes. So it does after `bury`.

    ``has_slots``, here and below: a claim has said that the queue or a job of it has a limit, or that one is in a batch.
    """
    rows: list[tuple[str, bytes]] = []
    kept: list[tuple[int, int, bytes]] = []
    results: list[str] = []
    for index, job in enumerate(jobs):
        rows.append((job.token, job.fence))
        if job.result_ttl_ms is not None:
            kept.append((index, job.result_ttl_ms, job.result))
            results.append(keys.result(job.token))
    named = slot_keys(keys, *_FOR_WAITERS) if has_slots else {}
    if following is not None:
        named |= following.keys(keys)
    return bind("acknowledge", keys, **named)(
        more_keys=results,
        state=state,
        job_count=len(jobs),
        jobs=rows,
        results=kept,
        **NOTHING if following is None else following.args(),
    )


@brief
class Failed(NamedTuple):
    """One attempt whose job is to run again, for `retry`."""

    token: str
    fence: bytes
    #: When to run again, as `parse_delay` writes it.
    when: str
    #: JSON: error, traceback, at. Empty if the job snoozes.
    error: bytes = b""


def retry(
    keys: DeliveryKeys,
    jobs: Sequence[Failed],
    *,
    attempt_failed: bool = True,
    has_slots: bool = False,
) -> Call[list[int]]:
    """Run jobs again later; returns the indexes of those whose lease was lost.

    ``attempt_failed``: False if the jobs snooze. Then their attempts, kills and last errors stay as they are.
    """
    named = slot_keys(keys, "held", "held_tasks") if has_slots else {}
    return bind("retry", keys, **named)(failed=int(attempt_failed), jobs=jobs)


@brief
class Rejected(NamedTuple):
    """One job that will not run again by itself, for `bury`."""

    token: str
    fence: bytes
    #: JSON: error, traceback, at.
    error: bytes
    #: How long its result, the failure, is kept for callers that wait for it; None: it is not kept.
    result_ttl_ms: int | None = None
    result: bytes = b""


def bury(
    keys: DeliveryKeys,
    jobs: Sequence[Rejected],
    *,
    state: State = State.DEAD,
    attempt_failed: bool = True,
    has_slots: bool = False,
    following: Following | None = None,
) -> Call[list[int]]:
    """Make jobs dead letters, or quarantine them, and store those that follow; returns the indexes of lost leases."""
    rows: list[tuple[Argument, ...]] = []
    results: list[str] = []
    for token, fence, error, ttl_ms, result in jobs:
        if ttl_ms is None:
            rows.append((token, fence, error, b"", b""))
        else:
            rows.append((token, fence, error, ttl_ms, result))
            results.append(keys.result(token))
    named = {"graves": keys.dead if state is State.DEAD else keys.quarantine}
    if has_slots:
        named |= slot_keys(keys, *_FOR_WAITERS)
    if following is not None:
        named |= following.keys(keys)
    return bind("bury", keys, **named)(
        more_keys=results,
        counter=state,
        failed=int(attempt_failed),
        jobs=rows,
        **NOTHING if following is None else following.args(),
    )


def give_back(
    keys: DeliveryKeys,
    jobs: Sequence[Leased],
    *,
    late: Collection[str] = (),
    begun: Collection[str] = (),
    has_slots: bool = False,
) -> Call[list[int]]:
    """Return unused leases, in the order in which they were claimed; that counts neither as attempt nor as kill.

    ``late`` has the tokens of jobs whose lease ended before they began: the second time, that counts as a kill. ``begun``
    has those of jobs that the end of their worker stopped: they are due now, the others since their start time.
    """
    rows: list[tuple[str, bytes, int]] = []
    for job in jobs:
        # What came in a frame stays with us: in the destination queue, nothing would show that it may be a job.
        how = int(job.is_foreign and not job.came_in_frame)
        if job.token in late:
            how += 6 if job.was_late else 2
        elif job.was_late:
            how += 2
        if job.token in begun:
            how += 8
        rows.append((job.token, job.fence, how))
    named = slot_keys(keys, "held", "held_tasks", "errors") if has_slots else {}
    return bind("give_back", keys, **named)(jobs=rows)


def renew(
    keys: DeliveryKeys, jobs: Sequence[tuple[str, bytes]], *, lease_ms: int
) -> Call[list[int]]:
    """Extend leases, given as (token, fence); returns the indexes of those that were lost."""
    return bind("renew", keys)(lease_ms=lease_ms, jobs=jobs)
