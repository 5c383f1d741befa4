"""Transferring what is due, leasing it to a process, and ending the leases of a dead process."""

import secrets
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from django_delayq.core.bounds import BYTE_BUDGET, MAX_BATCH
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.core.stored_pauses import StoredPauses
from django_delayq.exceptions import NewerFormat
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.script import rows
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat

#: A waiting worker looks at a queue at least so often within a lease, which keeps the record of its service fresh.
LOOKS_A_LEASE = 8


class Mode(StrEnum):
    """The way a claim treats due frames."""

    #: Lease them straight from the timeout set; frames that are not leased stay visible there.
    DIRECT = "direct"
    #: Transfer them to the destination queue as Redisson would; lease what lay there before.
    SHARED = "shared"
    #: Leave them and the retries alone: the caller consumes the destination queue only.
    TAKE = "take"


@brief
class Leased(msgspec.Struct):
    """One job that the caller holds a lease of."""

    token: str
    #: Attempts that failed before this lease.
    attempts: int
    #: Leases that expired before this lease.
    kills: int
    #: When the job was first due, epoch ms.
    start_time_ms: int
    payload: bytes
    #: Leased under a token of the claim, as no script can see whether it is a job of ours.
    is_foreign: bool
    #: Fencing token: the request that claimed it.
    fence: bytes
    #: It was given back before, as an earlier lease had ended before the job began.
    was_late: bool = False
    #: The job whose token the payload carries has ended a moment ago, if there was such a job at all.
    is_known: bool = False
    #: The limit that has admitted it, as `tail_of` takes it; empty: a worker has just given it to the job; None: none has.
    limit: str | None = None
    #: How long after its start time this attempt could begin at the soonest, ms: 0; or until its retry or snooze was due, or
    #: until what held it back ended: a limit, a pause, an earlier lease. A claim that is repeated does not know it.
    held_ms: int = 0

    @property
    def came_in_frame(self) -> bool:
        """Whether a foreign payload came in a frame, and not through the destination queue."""
        return self.token[16:17] == "f"


class Claimed(NamedTuple):
    """The reply to a claim."""

    #: The server's clock, epoch us.
    now_us: int
    #: Time until the next event: 0 if more waits now, -1 if nothing waits.
    wait_us: int
    transferred: int
    #: Payloads dropped because their job is known already.
    doubles: int
    #: Jobs dropped because somebody had deleted their payload.
    vanished: int
    #: Suspects that were put off instead of leased.
    put_off: int
    jobs: list[Leased]
    #: The queue's format, if this version cannot read it and so claimed nothing; else 0.
    newer_format: int = 0
    #: What is paused, as it is stored: the queue itself, and tasks; None: nothing is.
    pauses: StoredPauses | None = None
    #: What there is to say of limits; None: nothing.
    limits: "Limited | None" = None
    #: What the claim has ended that nobody else tells of.
    ends: "Sequence[EndedHere] | None" = None


class EndedHere(NamedTuple):
    """A job that a script has ended by itself."""

    token: str
    #: `State.CANCELLED` or `State.QUARANTINED`.
    state: State
    #: The task that its payload names, which nobody has checked; empty: none.
    task: str
    why: str


class Limited(NamedTuple):
    """The limits that a claim passes to the server."""

    #: The limits of the queue hold jobs back, which wait where they are.
    is_held_back: bool
    #: The queue or one of the jobs has a limit, so that whoever ends a lease has to say so: see `lease_ends`.
    has_slots: bool
    #: New jobs that were cancelled, because their limits were full.
    dropped: int


class Transferred(NamedTuple):
    """The reply to a transfer."""

    moved: int
    #: Time until the next element is due: 0 if more is due now, -1 if no element waits.
    wait_us: int


def transfer(
    keys: DeliveryKeys,
    *,
    batch: int,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Transferred]:
    """Move up to ``batch`` due elements to the destination queue, whatever lies among them.

    Frames of both formats are read. ``frame_format`` is that of the queue, in which a frame that fits both is read.
    Reading the reply raises NewerFormat if the queue is in a later format than this version reads.
    """
    queue = keys.queue

    def read(reply: list[int]) -> Transferred:
        moved, wait_us, later_format = reply
        if later_format:
            raise newer_format(queue.name, later_format)
        return Transferred(moved, wait_us)

    return bind("transfer", keys)(
        read,
        batch=batch,
        budget=byte_budget,
        seed=secrets.token_urlsafe(12),
        format=frame_format.number,
        read_format=signatures.FORMAT,
    )


def newer_format(queue: str, format: int) -> NewerFormat:
    """Return the error for a queue in a later format than this version reads."""
    return NewerFormat(
        f"queue {queue!r} is in format {format}, and this version reads format {signatures.FORMAT}: it does not serve"
        " the queue. Update this project"
    )


def claim(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    request: bytes,
    limit: int,
    lease_ms: int,
    mode: Mode = Mode.DIRECT,
    transfer_limit: int = 100,
    max_kills: int = -1,
    safe_kills: int = -1,
    takes_suspect: bool = True,
    put_off_ms: int = 0,
    priority_step_ms: int | None = None,
    keeps_ended: bool = False,
    has_slots: bool = False,
    has_declared: bool = False,
    limit_text: str = "",
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Claimed]:
    """Lease up to ``limit`` jobs. A repeat with the same ``request`` (8 random bytes) returns the same leases.

    ``owner`` is 8 bytes that name the process, for `recover`; ``frame_format`` as for `transfer`.

    A job with more kills than ``safe_kills`` is a suspect; with -1 no job is. A claim leases one suspect at most, and
    without ``takes_suspect`` none. It puts the others off for ``put_off_ms``.

    Among jobs with priorities, one that has waited for ``priority_step_ms`` comes before those of one point more that
    have just become due; None: the highest priority comes first, always.

    ``limit_text`` is what the settings limit on this queue, as `rates.limit_text` writes it. Where they limit nothing, a
    claim costs less without ``has_slots``; its reply is None if it has to be made with that, because somebody has set a
    limit or a job has one. `run` does so. Who ``has_declared`` which limits its code has, by `limiting.declare`, also gets
    None if the server has forgotten that and a job has a limit: then it declares them again.

    ``keeps_ended``: the queue remembers the jobs that ended last, those among them that this claim ends.
    """
    args: dict[str, Any] = {
        "owner": owner,
        "request": request,
        "limit": limit,
        "budget": byte_budget,
        "lease_ms": lease_ms,
        "mode": mode,
        "transfer_limit": transfer_limit,
        "max_kills": max_kills,
        "seed": secrets.token_urlsafe(12),
        "format": frame_format.number,
        "read_format": signatures.FORMAT,
        "safe_kills": safe_kills,
        "suspects": int(takes_suspect),
        "put_off_ms": put_off_ms,
        "priority_step_ms": "" if priority_step_ms is None else priority_step_ms,
    }
    named = {"last_ended": keys.last_ended} if keeps_ended else {}

    def full() -> Call[Claimed]:
        bound = bind("claim", keys, **_slot_keys(keys), **named)
        return bound(
            partial(_read_claimed_or_none, request),
            **args,
            limit_text=limit_text,
            has_declared=int(has_declared),
        )

    if has_slots or limit_text:
        return full()
    return bind("claim", keys, **named)(
        partial(_read_claimed_or_none, request), **args, full=full
    )


def _slot_keys(keys: DeliveryKeys) -> dict[str, str]:
    names = ("held", "held_tasks", "slots", "paces", "batches")
    return {name: keys.key(name) for name in names}


def _read_claimed_or_none(request: bytes, reply: list[Any] | None) -> Any:
    return None if reply is None else _read_claimed(request, reply)


_FEW = ("owner", "request", "limit", "lease_ms", "format", "read_format")


def claim_few(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    request: bytes,
    limit: int,
    lease_ms: int,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
) -> Call[Claimed | None]:
    """Do what `claim` does with `Mode.DIRECT`, at less cost, if a few frames are due and there is nothing else to do.

    The reply None means that nothing was done, and that the caller has to use `claim`. So does the repeat of a
    ``request``.
    """
    script, found = bind("claim_few", keys, _FEW)
    return Call(
        script,
        found,
        [owner, request, limit, lease_ms, frame_format.number, signatures.FORMAT],
        partial(_read_claimed_or_none, request),
        repeat=None,
    )


def _read_claimed(request: bytes, reply: list[Any]) -> Claimed:
    now_us, wait_us, transferred, doubles, vanished, put_off, later, *rest = reply
    of_queue, of_tasks, limited, dropped, ends, texts, *handed = rest
    limit_of_next = (limit.decode("utf-8", "replace") for limit in texts or ())
    jobs = [
        Leased(
            token.decode("utf-8", "replace"),
            attempts,
            kills,
            start_time_ms,
            payload,
            flags & 1 == 1,
            request,
            flags & 2 != 0,
            flags & 4 != 0,
            next(limit_of_next, "") if flags & 8 else None,
            flags >> 4,
        )
        for token, attempts, kills, start_time_ms, payload, flags in rows(handed, 6)
    ]
    is_paused = of_queue is not None or of_tasks is not None
    return Claimed(
        now_us,
        wait_us,
        transferred,
        doubles,
        vanished,
        put_off,
        jobs,
        later,
        StoredPauses(of_queue, of_tasks) if is_paused else None,
        Limited(limited & 1 == 1, limited & 6 != 0, dropped) if limited else None,
        read_ends(ends) if ends else None,
    )


def read_ends(reply: list[bytes]) -> tuple[EndedHere, ...]:
    """Read what a script says of the jobs that it has ended by itself."""
    texts = [item.decode("utf-8", "replace") for item in reply]
    return tuple(
        EndedHere(token, State(state), task, why)
        for token, state, task, why in zip(*[iter(texts)] * 4, strict=True)
    )


class Recovered(NamedTuple):
    """The reply to a `recover` call."""

    ended: int
    #: The rank to go on with, or -1 at the end.
    next_rank: int


def recover(
    keys: DeliveryKeys, *, owner: bytes, first_rank: int = 0, batch: int = MAX_BATCH
) -> Call[Recovered]:
    """End the leases that a dead process has among ``batch`` leases, from a rank on."""
    return bind("recover", keys)(
        lambda reply: Recovered(*reply), owner=owner, first=first_rank, batch=batch
    )


def leave(keys: DeliveryKeys, *, owner: bytes) -> Call[int]:
    """Forget the last request of a process that ends; returns 1 if there was one."""
    return bind("leave", keys)(owner=owner)
