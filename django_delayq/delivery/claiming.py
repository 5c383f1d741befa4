"""Transferring what is due, and leasing it to a process; giving up what a dead one had."""

import secrets
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from django_delayq.calls.call import Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES, now_argument
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.limits import BYTE_BUDGET, MAX_BATCH
from django_delayq.exceptions import NewerFormat
from django_delayq.wire import signing
from django_delayq.wire.frame import FrameFormat

#: A worker that waits looks at a queue at least so often within a lease, so that the record of its service is fresh.
LOOKS_A_LEASE = 8


class Mode(StrEnum):
    """What a claim does with due frames."""

    #: Lease them straight from the timeout set, where the others stay visible.
    DIRECT = "direct"
    #: Transfer them to the destination queue as Redisson would; lease what lay there.
    SHARED = "shared"
    #: Leave them, and the retries, alone: a consumer of the destination queue only.
    TAKE = "take"


class Leased(msgspec.Struct):
    """One job that is ours for a while."""

    token: str
    #: Attempts that failed before this one.
    attempts: int
    #: Leases that expired before this one.
    kills: int
    #: When it was first due, epoch ms.
    start_time_ms: int
    payload: bytes
    #: Leased under a token of the claim: no script can see that it is a job of ours.
    is_foreign: bool
    #: Fencing token: the request that claimed it.
    fence: bytes
    #: It was given back before, as its lease had ended before it began.
    was_late: bool = False
    #: The job whose token the payload has ended a moment ago, if it is a job at all.
    is_known: bool = False

    @property
    def came_in_frame(self) -> bool:
        """Whether a foreign one came in a frame, and not by the destination queue."""
        return self.token[16:17] == "f"


class Claimed(NamedTuple):
    """The reply to a claim."""

    #: The server's clock, epoch us.
    now_us: int
    #: Until the next event: 0 when more waits now, -1 when nothing does.
    wait_us: int
    transferred: int
    #: Payloads dropped because their job is known already.
    doubles: int
    #: Jobs dropped because their payload is gone: somebody deleted it.
    vanished: int
    #: Suspects that were not to be leased now.
    put_off: int
    jobs: list[Leased]
    #: The queue's format where that is later than we read, which is why nothing was claimed; else 0.
    newer_format: int = 0


class Transferred(NamedTuple):
    """The reply to a transfer."""

    moved: int
    #: Until the next element is due: 0 when more is due now, -1 when none waits.
    wait_us: int


def transfer(
    keys: DeliveryKeys,
    *,
    batch: int,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
    now_us: int | None = None,
) -> Call[Transferred]:
    """Move up to ``batch`` due elements to the destination queue, whatever lies among them.

    ``frame_format`` is the queue's: both are read, and a frame that is both is read as that.
    The reply raises NewerFormat where the queue is in a later format than this version reads.
    """
    queue = keys.queue

    def read(reply: list[int]) -> Transferred:
        if len(reply) == 3:
            raise newer_format(queue.name, reply[2])
        return Transferred(*reply)

    return Call(
        *bind(PACKAGES, "transfer", keys),
        (
            now_argument(now_us),
            batch,
            byte_budget,
            secrets.token_urlsafe(12),
            frame_format.number,
            signing.FORMAT,
        ),
        read,
    )


def newer_format(queue: str, format: int) -> NewerFormat:
    """Return the error for a queue in a later format than this version reads."""
    return NewerFormat(
        f"queue {queue!r} is in format {format}, and this version reads up to {signing.FORMAT}: it takes and moves nothing"
        f" there. Update it; or, to go back, run manage.py delayq_resign --format {signing.FORMAT} of the later version"
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
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
    now_us: int | None = None,
) -> Call[Claimed]:
    """Lease up to ``limit`` jobs. The same ``request`` (8 random bytes) again returns the same leases.

    ``owner`` is 8 bytes that name the process, for `recover`; ``frame_format`` as for `transfer`.

    A job with more kills than ``safe_kills`` is a suspect; -1 knows no suspects. A claim leases one at most, and
    without ``takes_suspect`` not even that. It puts the others off for ``put_off_ms``.
    """

    return Call(
        *bind(PACKAGES, "claim", keys),
        (
            now_argument(now_us),
            owner,
            request,
            limit,
            byte_budget,
            lease_ms,
            mode,
            transfer_limit,
            max_kills,
            secrets.token_urlsafe(12),
            frame_format.number,
            signing.FORMAT,
            safe_kills,
            int(takes_suspect),
            put_off_ms,
        ),
        partial(_read_claimed, request),
    )


def claim_few(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    request: bytes,
    limit: int,
    lease_ms: int,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    now_us: int | None = None,
) -> Call[Claimed | None]:
    """Do as `claim` with `Mode.DIRECT`, for less, where a few frames are due and nothing else is to be done.

    None: nothing was done, and the caller has to ask `claim`. To repeat a ``request``, ask `claim` as well.
    """
    return Call(
        *bind(PACKAGES, "claim_few", keys),
        (
            now_argument(now_us),
            owner,
            request,
            limit,
            lease_ms,
            frame_format.number,
            signing.FORMAT,
        ),
        lambda reply: None if reply is None else _read_claimed(request, reply),
        repeat=None,
    )


def _read_claimed(request: bytes, reply: list[Any]) -> Claimed:
    if len(reply) == 7:
        return Claimed(reply[0], -1, 0, 0, 0, 0, [], newer_format=reply[6])
    # Six elements a job.
    each = islice(reply, 6, None)
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
        )
        for token, attempts, kills, start_time_ms, payload, flags in zip(
            each, each, each, each, each, each, strict=True
        )
    ]
    now_us, wait_us, transferred, doubles, vanished, put_off = reply[:6]
    return Claimed(now_us, wait_us, transferred, doubles, vanished, put_off, jobs)


class Recovered(NamedTuple):
    """The reply to a `recover` call."""

    ended: int
    #: Rank to go on with, or -1 at the end.
    next_rank: int


def recover(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    first_rank: int = 0,
    batch: int = MAX_BATCH,
    now_us: int | None = None,
) -> Call[Recovered]:
    """End the leases of a dead process among ``batch`` leases from a rank on."""
    return Call(
        *bind(PACKAGES, "recover", keys),
        (now_argument(now_us), owner, first_rank, batch),
        lambda reply: Recovered(*reply),
    )


def leave(keys: DeliveryKeys, *, owner: bytes) -> Call[int]:
    """Forget the last request of a process that ends; returns 1 when there was one."""
    return Call(*bind(PACKAGES, "leave", keys), (owner,))
