"""What can be done to the jobs of a queue, each operation one bounded script call, described without I/O.

Every function returns a `Call`; `run`, `arun` and `run_all` of ``wire.call`` execute it. Who decides when to
call is ``transfer`` and ``worker``; what a payload means is left to ``jobs``.
"""

import os
import re
import secrets
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import msgspec

from django_delayq.calls.call import Argument, Call, load_script
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.exceptions import NewerFormat
from django_delayq.wire import signing
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.publishing import note_refusal, read_published
from django_delayq.wire.signing import TOKEN_LENGTH as TOKEN_LENGTH

#: Jobs of one `schedule` call: some 2.7 ms of the server's time.
SCHEDULE_BATCH = 500
#: Most jobs of one `claim`, `acknowledge`, `retry`, `renew`: Lua unpacks some 8,000 values at most.
MAX_BATCH = 500
#: Jobs of one `cancel_many` call: some 4 ms of the server's time, and what finding them in the delay queue takes.
CANCEL_BATCH = 100
#: The same for elements that others have offered, each of which is a scan of the delay queue.
FOREIGN_BATCH = 4
#: Whoever waits looks at a queue at least so often within a lease, so that it knows when it was last served.
LOOKS_A_LEASE = 8
#: Bytes of payload that one claim or transfer takes out, about.
BYTE_BUDGET = 1 << 20
#: Bytes of each payload that a page shows.
PREVIEW_BYTES = 16_384
#: Bytes of the longest name of a task that is held.
MAX_HELD_NAME = 255
#: Names of tasks that one `release` looks at.
HELD_NAMES = 100
#: How long an ended job is remembered, so that a repeated schedule of it is noticed. `_job.lua` has it too.
ENDED_MS = 30_000
#: How long after its first try a call may be repeated that relies on this. The rest is for a repeat that is long on its
#: way: twice the time-out of a socket.
REPEAT_MS = 20_000

#: How long what a process said of the formats that it reads counts; it says so every minute.
ENROLLED_MS = 180_000

#: What HINCRBY writes.
_NUMBER = re.compile(rb"-?\d{1,19}")

PACKAGES = ("django_delayq.delivery", "django_delayq.wire")


T = TypeVar("T")


class State(StrEnum):
    """Where a job is in its life."""

    #: Waits for the commit of a database transaction; the server does not know it yet.
    PENDING = "pending"
    SCHEDULED = "scheduled"
    DUE = "due"
    RUNNING = "running"
    RETRYING = "retrying"
    #: A worker had it that does not know its task; kept for one that does.
    HELD = "held"
    SUCCEEDED = "succeeded"
    #: Failed for good, and not kept: a dead letter that was discarded.
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Too late to matter; it did not run.
    EXPIRED = "expired"
    #: Taken from a `BlockingQueue`, here or by Java.
    TAKEN = "taken"
    DEAD = "dead"
    QUARANTINED = "quarantined"
    #: In a destination queue too long to be searched, or taken by Java.
    UNKNOWN = "unknown"
    #: No job has this id (any more).
    MISSING = "missing"


class Outcome(StrEnum):
    """How a call to cancel or move a job ended, where it is not a `State` that it was left in."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    #: The job lies in a long destination queue shared with Java: done if one of our workers takes it.
    NOTED = "noted"


class Mode(StrEnum):
    """What a claim does with due frames."""

    #: Lease them straight from the timeout set, where the others stay visible.
    DIRECT = "direct"
    #: Transfer them to the destination queue as Redisson would; lease what lay there.
    SHARED = "shared"
    #: Leave them, and the retries, alone: a consumer of the destination queue only.
    TAKE = "take"


class Scheduled(msgspec.Struct):
    """One job as `schedule` left it."""

    #: Epoch ms, by the server's clock.
    start_time_ms: int
    #: Token of the job that holds the unique key; the new one was not stored then. Else empty.
    holder: str
    #: How a job that was stored before has ended, or UNKNOWN: it has begun. None: it waits.
    beyond: State | None = None


class NewJob(NamedTuple):
    """One job to store."""

    token: str
    #: ``+`` and ms from now, or ``=`` and epoch ms.
    when: str
    #: ``e`` (held to the job's end) or ``s`` (held to its start) and the key; or empty.
    unique: str
    payload: bytes


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
    #: Under a token that is not the payload's own: offered by somebody else, as far as a script can tell.
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


class Inspected(NamedTuple):
    """One job as it is."""

    state: State
    #: Its start time, the end of its lease, until when it is held, or when it was put aside; epoch ms.
    score_ms: int
    attempts: int
    kills: int
    #: When it was first due, epoch ms.
    start_time_ms: int
    payload: bytes
    error: bytes
    unique: str
    now_ms: int


class PageRow(NamedTuple):
    """One element of a page."""

    #: Empty for a payload without a token.
    token: str
    score_ms: int | None
    attempts: int
    kills: int
    #: At most `PREVIEW_BYTES` of it.
    payload: bytes
    payload_size: int
    error: bytes


class Page(NamedTuple):
    """Part of one set of a queue."""

    total: int
    rows: list[PageRow]


class Counts(NamedTuple):
    """A queue in numbers."""

    #: Before their first attempt, due ones included: frames in the timeout set, and what was returned.
    waiting: int
    due: int
    #: Of those that wait: given back, moved while they lay in the destination queue, or replayed. No frame is left.
    returned: int
    delay_queue: int
    destination: int
    running: int
    retrying: int
    #: For a worker that knows their tasks.
    held: int
    dead: int
    quarantined: int
    #: Start time of the first that waits, epoch ms; None when none does.
    next_ms: int | None
    now_ms: int
    #: offered, succeeded, retried, dead, cancelled, … since the queue began.
    counters: dict[str, int]


def new_token() -> str:
    """Make the token of a job: 22 characters, URL-safe."""
    # secrets.token_urlsafe(16), in a third of the time.
    return b2a_base64(os.urandom(16)).translate(_URL_SAFE, b"=\n").decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def schedule(
    keys: DeliveryKeys,
    jobs: Sequence[NewJob],
    *,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
    now_us: int | None = None,
) -> Call[list[Scheduled]]:
    """Store up to `SCHEDULE_BATCH` jobs. Safe to repeat."""
    queue = keys.queue
    args: list[Argument] = [
        _now(now_us),
        frame_format.number,
        "1" if insertion_list else "0",
        "0",
    ]
    for job in jobs:
        args += job
    return Call(
        load_script(PACKAGES, "schedule"),
        (
            queue.timeout_set,
            queue.delay_queue,
            queue.channel,
            queue.destination,
            keys.locators,
            keys.headers,
            keys.unique,
            keys.ended,
            keys.counters,
        ),
        args,
        _read_scheduled,
        repeat={3: "1"},
        window_ms=REPEAT_MS,
    )


def store(
    keys: DeliveryKeys,
    job: NewJob,
    *,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
    now_us: int | None = None,
) -> Call[list[Scheduled]]:
    """`schedule` for one job, in half the server's time where nothing has to be looked up for it. Not for a pipeline."""

    def full() -> Call[list[Scheduled]]:
        return schedule(
            keys,
            [job],
            frame_format=frame_format,
            insertion_list=insertion_list,
            now_us=now_us,
        )

    _, when, unique, payload = job
    if unique or not payload.startswith(signing.JOB_START):
        return full()
    queue = keys.queue
    own = (queue.timeout_set, keys.locators, keys.counters, queue.channel)
    args = (when, frame_format.number, payload)
    return Call(
        load_script(PACKAGES, "store"),
        (*own, queue.delay_queue) if insertion_list else own,
        args if now_us is None else (*args, now_us),
        _read_stored,
        window_ms=REPEAT_MS,
        full=full,
    )


def _read_stored(reply: int | list[Any]) -> list[Scheduled]:
    return [Scheduled(read_published(reply), "")]


def _read_scheduled(reply: list[Any]) -> list[Scheduled]:
    if len(reply) % 2:
        note_refusal(reply.pop())
    return [
        Scheduled(0, "", State(second[1:].decode()))
        if second[:1] == b"="
        else Scheduled(int(first), second.decode())
        for first, second in zip(reply[::2], reply[1::2], strict=True)
    ]


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
        load_script(PACKAGES, "transfer"),
        (
            queue.timeout_set,
            queue.delay_queue,
            queue.destination,
            keys.locators,
            keys.quarantine,
            keys.payloads,
            keys.errors,
            keys.counters,
            keys.control,
        ),
        (
            _now(now_us),
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

    A job with more kills than ``safe_kills`` is a suspect; -1: none is. One at most is leased, and none without
    ``takes_suspect``: the others are not to be claimed again for ``put_off_ms``.
    """
    queue = keys.queue

    return Call(
        load_script(PACKAGES, "claim"),
        (
            queue.timeout_set,
            queue.delay_queue,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.headers,
            keys.payloads,
            keys.locators,
            keys.notes,
            keys.unique,
            keys.ended,
            keys.counters,
            keys.claims,
            keys.dead,
            keys.quarantine,
            keys.errors,
            keys.returned,
            keys.control,
            keys.channel,
        ),
        (
            _now(now_us),
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

    None: nothing was done, and `claim` has to be asked. It is also for who repeats a ``request``.
    """
    queue = keys.queue
    return Call(
        load_script(PACKAGES, "claim_few"),
        (
            queue.timeout_set,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.returned,
            keys.headers,
            keys.payloads,
            keys.locators,
            keys.ended,
            keys.claims,
            keys.control,
        ),
        (
            _now(now_us),
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


class Done(NamedTuple):
    """One job that ended, for `acknowledge`."""

    token: str
    fence: bytes
    #: How long its result is kept; None: not at all.
    result_ttl_ms: int | None = None
    result: bytes = b""


def acknowledge(
    keys: DeliveryKeys,
    jobs: Sequence[Done],
    *,
    outcome: State = State.SUCCEEDED,
    now_us: int | None = None,
) -> Call[list[int]]:
    """End jobs; returns the indexes of those whose lease was lost."""
    args: list[Argument] = [_now(now_us), outcome, len(jobs)]
    kept: list[Argument] = []
    results: list[str] = []
    for index, (token, fence, ttl_ms, result) in enumerate(jobs):
        args += (token, fence)
        if ttl_ms is not None:
            kept += (index, ttl_ms, result)
            results.append(keys.result(token))
    return Call(
        load_script(PACKAGES, "acknowledge"),
        (
            keys.leases,
            keys.headers,
            keys.payloads,
            keys.errors,
            keys.unique,
            keys.ended,
            keys.counters,
            *results,
        ),
        args + kept,
    )


class Failed(NamedTuple):
    """One attempt that failed and is to be repeated, for `retry`."""

    token: str
    fence: bytes
    delay_ms: int
    #: JSON: error, traceback, at.
    error: bytes


def retry(
    keys: DeliveryKeys, jobs: Sequence[Failed], *, now_us: int | None = None
) -> Call[list[int]]:
    """Repeat jobs later; returns the indexes of those whose lease was lost."""
    args: list[Argument] = [_now(now_us)]
    for job in jobs:
        args += job
    return Call(
        load_script(PACKAGES, "retry"),
        (
            keys.leases,
            keys.headers,
            keys.retries,
            keys.errors,
            keys.counters,
            keys.channel,
        ),
        args,
    )


class Rejected(NamedTuple):
    """One job that will not run again by itself, for `bury`."""

    token: str
    fence: bytes
    #: JSON: error, traceback, at.
    error: bytes
    #: How long its result, the failure, is kept for those who wait for it; None: not at all.
    result_ttl_ms: int | None = None
    result: bytes = b""


def bury(
    keys: DeliveryKeys,
    jobs: Sequence[Rejected],
    *,
    state: State = State.DEAD,
    attempt_failed: bool = True,
    now_us: int | None = None,
) -> Call[list[int]]:
    """Make jobs dead letters, or quarantine them; returns the indexes of those whose lease was lost."""
    args: list[Argument] = [_now(now_us), state, int(attempt_failed)]
    results: list[str] = []
    for token, fence, error, ttl_ms, result in jobs:
        if ttl_ms is None:
            args += (token, fence, error, b"", b"")
        else:
            args += (token, fence, error, ttl_ms, result)
            results.append(keys.result(token))
    graves = keys.dead if state is State.DEAD else keys.quarantine
    return Call(
        load_script(PACKAGES, "bury"),
        (
            keys.leases,
            keys.headers,
            graves,
            keys.errors,
            keys.unique,
            keys.counters,
            *results,
        ),
        args,
    )


class Held(NamedTuple):
    """One job whose task this process does not know, for `hold`."""

    token: str
    fence: bytes
    #: Of the task, as `can_be_held` accepts it, or of the key.
    name: str
    #: What the user is told of it.
    why: str
    #: How long to hold it, from the first time that it was held for so long; None: as long as it takes.
    hold_ms: int | None


def can_be_held(name: str) -> bool:
    """Return whether jobs of a task can be held: its name can be sent, and fits among the others in one set."""
    try:
        # A codec of Java's may bring half a surrogate pair, which cannot be sent.
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= MAX_HELD_NAME and b"\0" not in encoded


def hold(
    keys: DeliveryKeys,
    jobs: Sequence[Held],
    *,
    now_us: int | None = None,
) -> Call[list[int]]:
    """Keep jobs for a worker that knows their tasks or keys; returns the indexes of those whose lease was lost.

    They are held until ``hold_ms`` after they were first held; `release` quarantines them then. One that was signed
    with another key meanwhile is not held for the old one: it is due again.
    """
    args: list[Argument] = [_now(now_us)]
    for job in jobs:
        args += (*job[:-1], "" if job.hold_ms is None else job.hold_ms)
    return Call(
        load_script(PACKAGES, "hold"),
        (
            keys.leases,
            keys.headers,
            keys.held,
            keys.held_tasks,
            keys.errors,
            keys.payloads,
            keys.retries,
            keys.returned,
        ),
        args,
    )


class Released(NamedTuple):
    """The reply to a `release` call."""

    released: int
    #: They were held for too long.
    quarantined: int
    #: Where to go on; empty at the end of what is held.
    cursor: bytes


def release(
    keys: DeliveryKeys,
    names: Iterable[str],
    *,
    limit: int,
    cursor: bytes = b"",
    name_limit: int = HELD_NAMES,
    is_worker: bool = True,
    now_us: int | None = None,
) -> Call[Released]:
    """Let up to ``limit`` held jobs of the named tasks run, the first due first.

    A worker, which names all tasks that it knows, quarantines up to ``limit`` others that were held for too long.
    Of the tasks that something is held of, at most ``name_limit`` are looked at, from a cursor on.
    """
    return Call(
        load_script(PACKAGES, "release"),
        (
            keys.held,
            keys.held_tasks,
            keys.headers,
            keys.errors,
            keys.retries,
            keys.returned,
            keys.quarantine,
            keys.unique,
            keys.counters,
        ),
        (_now(now_us), limit, int(is_worker), name_limit, cursor, *names),
        lambda reply: Released(*reply),
    )


class HeldNames(NamedTuple):
    """The reply to a `held_names` call."""

    #: By what they are held for: the name of a task; ``key `` and the id of a key; ``format `` and its number.
    counts: dict[str, int]
    #: Held for others.
    rest: int


def held_names(keys: DeliveryKeys, *, limit: int = 20) -> Call[HeldNames]:
    """Count held jobs by what they are held for, of up to ``limit`` names."""
    return Call(
        load_script(PACKAGES, "held_names"),
        (keys.held_tasks,),
        (limit,),
        _read_held_names,
    )


def _read_held_names(reply: list[Any]) -> HeldNames:
    # Anybody may have put a member there.
    names = [name.decode(errors="replace") for name in reply[1::2]]
    return HeldNames(dict(zip(names, reply[2::2], strict=True)), reply[0])


def give_back(
    keys: DeliveryKeys,
    jobs: Sequence[Leased],
    *,
    late: Collection[str] = (),
    now_us: int | None = None,
) -> Call[list[int]]:
    """Return leases that were not used, in the order they were claimed; nothing counts.

    ``late`` has the tokens of jobs whose lease ended before they began: that counts as a kill the second time.
    """
    args: list[Argument] = [_now(now_us)]
    for job in jobs:
        # Where a worker finds it as what it is: in the destination queue nothing tells a job that came in a frame.
        how = int(job.is_foreign and not job.came_in_frame)
        if job.token in late:
            how += 6 if job.was_late else 2
        elif job.was_late:
            how += 2
        args += (job.token, job.fence, how)
    return Call(
        load_script(PACKAGES, "give_back"),
        (
            keys.leases,
            keys.headers,
            keys.retries,
            keys.payloads,
            keys.queue.destination,
            keys.channel,
            keys.returned,
        ),
        args,
    )


def renew(
    keys: DeliveryKeys,
    jobs: Sequence[tuple[str, bytes]],
    *,
    lease_ms: int,
    now_us: int | None = None,
) -> Call[list[int]]:
    """Extend leases, given as (token, fence); returns the indexes of those that were lost."""
    args: list[Argument] = [_now(now_us), lease_ms]
    for job in jobs:
        args += job
    return Call(
        load_script(PACKAGES, "renew"),
        (keys.leases, keys.headers, keys.control),
        args,
    )


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
        load_script(PACKAGES, "recover"),
        (keys.leases, keys.headers, keys.claims, keys.channel),
        (_now(now_us), owner, first_rank, batch),
        lambda reply: Recovered(*reply),
    )


def cancel(
    keys: DeliveryKeys, token: str, *, now_us: int | None = None
) -> Call[Outcome | State]:
    """Cancel a job unless it runs; returns the outcome, or the state it was left in."""
    return _cancel(keys, [token], lambda reply: _read_cancelled(reply[0]), now_us)


def cancel_many(
    keys: DeliveryKeys, tokens: Iterable[str], *, now_us: int | None = None
) -> Iterator[Call[dict[str, Outcome | State]]]:
    """Cancel jobs as `cancel` does, some hundred a call: they share a scan of the delay queue.

    Each call returns the outcomes of its own jobs, by token.
    """
    ours: list[str] = []
    foreign: list[str] = []
    for token in dict.fromkeys(tokens):
        (ours if len(token) == TOKEN_LENGTH else foreign).append(token)
    # Only frames of ours are found there without a scan for each.
    for group, size in ((ours, CANCEL_BATCH), (foreign, FOREIGN_BATCH)):
        for start in range(0, len(group), size):
            batch = group[start : start + size]

            def read(
                reply: list[bytes], batch: list[str] = batch
            ) -> dict[str, Outcome | State]:
                return dict(zip(batch, map(_read_cancelled, reply), strict=True))

            yield _cancel(keys, batch, read, now_us)


def _cancel(
    keys: DeliveryKeys,
    tokens: Sequence[str],
    read: Callable[[list[bytes]], T],
    now_us: int | None,
) -> Call[T]:
    queue = keys.queue
    return Call(
        load_script(PACKAGES, "cancel"),
        (
            queue.timeout_set,
            queue.delay_queue,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.dead,
            keys.quarantine,
            keys.headers,
            keys.payloads,
            keys.locators,
            keys.errors,
            keys.notes,
            keys.unique,
            keys.ended,
            keys.counters,
            keys.returned,
            keys.held,
            keys.held_tasks,
        ),
        (_now(now_us), *tokens),
        read,
        window_ms=REPEAT_MS,
    )


def _read_cancelled(reply: bytes) -> Outcome | State:
    text = reply.decode()
    # A job that was cancelled before is left in that state: to the caller it is the same.
    return Outcome(text) if text in (Outcome.CANCELLED, Outcome.NOTED) else State(text)


def reschedule(
    keys: DeliveryKeys, token: str, when: str, *, now_us: int | None = None
) -> Call[tuple[Outcome | State, int]]:
    """Move a job unless it runs; returns the outcome, or the state it was left in, and the start time (epoch ms)."""
    queue = keys.queue
    return Call(
        load_script(PACKAGES, "reschedule"),
        (
            queue.timeout_set,
            queue.channel,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.dead,
            keys.quarantine,
            keys.headers,
            keys.payloads,
            keys.locators,
            keys.notes,
            keys.unique,
            keys.ended,
            keys.channel,
            keys.returned,
            keys.held,
            keys.held_tasks,
            keys.errors,
        ),
        (_now(now_us), token, when, _new_request()),
        _read_rescheduled,
        window_ms=REPEAT_MS,
    )


def _read_rescheduled(reply: list[Any]) -> tuple[Outcome | State, int]:
    if len(reply) > 2:
        note_refusal(reply[2])
    text = reply[0].decode()
    return (
        Outcome(text) if text in (Outcome.RESCHEDULED, Outcome.NOTED) else State(text)
    ), int(reply[1])


def inspect(
    keys: DeliveryKeys, token: str, *, now_us: int | None = None
) -> Call[Inspected]:
    """Read one job, wherever it is."""
    queue = keys.queue
    return Call(
        load_script(PACKAGES, "inspect"),
        (
            queue.timeout_set,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.dead,
            keys.quarantine,
            keys.headers,
            keys.payloads,
            keys.locators,
            keys.errors,
            keys.ended,
            keys.returned,
            keys.held,
        ),
        (_now(now_us), token),
        _read_inspected,
    )


def _read_inspected(reply: list[Any]) -> Inspected:
    state, score, attempts, kills, due, payload, error, unique, now_ms = reply
    return Inspected(
        State(state.decode()),
        score,
        attempts,
        kills,
        due,
        payload,
        error,
        unique.decode(errors="replace"),
        now_ms,
    )


def replay(
    keys: DeliveryKeys,
    tokens: Sequence[str],
    *,
    state: State = State.DEAD,
    when: str = "+0",
    now_us: int | None = None,
) -> Call[int]:
    """Run dead letters (or quarantined payloads) again from their first attempt; returns how many were there."""
    graves = keys.dead if state is State.DEAD else keys.quarantine
    return Call(
        load_script(PACKAGES, "replay"),
        (
            graves,
            keys.returned,
            keys.headers,
            keys.payloads,
            keys.channel,
            keys.ended,
            keys.errors,
            *map(keys.result, tokens),
        ),
        (_now(now_us), when, _new_request(), *tokens),
        read_published,
        window_ms=REPEAT_MS,
    )


def discard(
    keys: DeliveryKeys,
    tokens: Sequence[str],
    *,
    state: State = State.DEAD,
    now_us: int | None = None,
) -> Call[int]:
    """Delete dead letters (or quarantined payloads) for good; returns how many were there."""
    graves = keys.dead if state is State.DEAD else keys.quarantine
    return Call(
        load_script(PACKAGES, "discard"),
        (graves, keys.headers, keys.payloads, keys.errors, keys.ended),
        (_now(now_us), _new_request(), *tokens),
        window_ms=REPEAT_MS,
    )


#: The sets of a queue that can be paged through: attribute of the keys, what the set holds.
PAGES: dict[State, str] = {
    State.SCHEDULED: "frames",
    State.DUE: "payloads",
    State.RUNNING: "tokens",
    State.RETRYING: "tokens",
    State.HELD: "tokens",
    State.DEAD: "tokens",
    State.QUARANTINED: "tokens",
}


def page(
    keys: DeliveryKeys,
    state: State,
    *,
    first: int = 0,
    count: int = 50,
    newest: bool = False,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Page]:
    """Read a page: SCHEDULED is what was returned before its first attempt, then the timeout set, each by start time;
    DUE is the destination queue; the others are our sets.

    ``frame_format`` as for `transfer`.
    It has fewer rows than asked for where their payloads are so large that the server would be held for long.
    """
    sets = {
        State.SCHEDULED: keys.queue.timeout_set,
        State.DUE: keys.queue.destination,
        State.RUNNING: keys.leases,
        State.RETRYING: keys.retries,
        State.HELD: keys.held,
        State.DEAD: keys.dead,
        State.QUARANTINED: keys.quarantine,
    }
    return Call(
        load_script(PACKAGES, "page"),
        (
            sets[state],
            keys.headers,
            keys.payloads,
            keys.errors,
            keys.returned,
            keys.locators,
        ),
        (
            PAGES[state],
            first,
            count,
            PREVIEW_BYTES,
            int(newest),
            byte_budget,
            frame_format.number,
        ),
        _read_page,
    )


def _read_page(reply: list[Any]) -> Page:
    rows = [
        PageRow(
            reply[i].decode(errors="replace"),
            _read_score(reply[i + 1]),
            reply[i + 2],
            reply[i + 3],
            reply[i + 4],
            reply[i + 5],
            reply[i + 6],
        )
        for i in range(1, len(reply), 7)
    ]
    return Page(reply[0], rows)


def _read_score(text: bytes) -> int | None:
    # Anybody may have written inf, which is no time.
    score = float(text or "inf")
    return int(score) if isfinite(score) else None


def counts(keys: DeliveryKeys, *, now_us: int | None = None) -> Call[Counts]:
    """Count a queue; O(log N)."""
    queue = keys.queue
    return Call(
        load_script(PACKAGES, "counts"),
        (
            queue.timeout_set,
            queue.delay_queue,
            queue.destination,
            keys.leases,
            keys.retries,
            keys.dead,
            keys.quarantine,
            keys.counters,
            keys.returned,
            keys.held,
        ),
        (_now(now_us),),
        _read_counts,
    )


def _read_counts(reply: list[Any]) -> Counts:
    numbers = reply[13:]
    # What is no number is none of ours, and costs a page nothing.
    counters = {
        numbers[i].decode(errors="replace"): int(numbers[i + 1])
        for i in range(0, len(numbers), 2)
        if _NUMBER.fullmatch(numbers[i + 1])
    }
    # Every frame that we write has its number.
    counters["offered"] = counters.pop("number", 0)
    first = reply[8] if reply[8] >= 0 else None
    frames, due, delay_queue, destination, running, retrying, dead, quarantined = reply[
        :8
    ]
    returned, returned_due, held = reply[10:13]
    return Counts(
        frames + returned,
        due + returned_due,
        returned,
        delay_queue,
        destination,
        running,
        retrying,
        held,
        dead,
        quarantined,
        first,
        reply[9],
        counters,
    )


def leave(keys: DeliveryKeys, *, owner: bytes) -> Call[int]:
    """Forget the last request of a process that ends; returns 1 when there was one."""
    return Call(load_script(PACKAGES, "leave"), (keys.claims, keys.control), (owner,))


class Where(StrEnum):
    """Where `resign` finds payloads."""

    FRAMES = "frames"
    DESTINATION = "destination"
    #: Of what was claimed once.
    PAYLOADS = "payloads"


def resign(
    keys: DeliveryKeys, where: Where, items: Iterable[tuple[str | int, bytes, bytes]]
) -> Call[int]:
    """Write payloads anew where they are as they were read; returns how many were. Safe to repeat.

    ``items`` are index or token, frame or payload as read, and the new payload. An index may be a guess, or empty for a
    frame; in the destination queue it counts from the tail, -1 being the last.
    """
    args: list[Argument] = [where]
    for item in items:
        args += item
    return Call(
        load_script(PACKAGES, "resign"),
        (
            keys.queue.timeout_set,
            keys.queue.delay_queue,
            keys.queue.destination,
            keys.locators,
            keys.payloads,
            keys.counters,
        ),
        args,
    )


class Enrolled(NamedTuple):
    """The reply to an `enroll` call."""

    #: Of the queue: what its workers have to read.
    format: int
    #: Processes that read no format as late as the caller's.
    behind: int
    #: What a command has chosen to be written; 0: nothing.
    written: int


def enroll(
    keys: DeliveryKeys,
    *,
    owner: bytes,
    reads: int | None = None,
    now_us: int | None = None,
) -> Call[Enrolled]:
    """Say that a process reads the formats up to ``reads``; the queue goes to a later one when all that live do."""
    return Call(
        load_script(PACKAGES, "enroll"),
        (keys.control,),
        (_now(now_us), owner, reads or signing.FORMAT, ENROLLED_MS),
        lambda reply: Enrolled(*reply),
    )


class QueueFormat(NamedTuple):
    """The reply to a `read_format` call."""

    #: What the queue's workers have to read.
    format: int
    #: What is written to it.
    written: int


def read_format(keys: DeliveryKeys) -> Call[QueueFormat]:
    """Ask in which format a queue is."""
    return Call(
        load_script(PACKAGES, "read_format"),
        (keys.control,),
        read=lambda reply: QueueFormat(*reply),
    )


class Step(StrEnum):
    """What `set_format` is to do."""

    #: Raise the format, or have an earlier one written; nothing where workers read less than what it is raised to.
    BEGIN = "begin"
    #: The same, whatever workers read.
    FORCE = "force"
    #: Lower the format to what is written, once nothing later waits.
    END = "end"


class FormatSet(NamedTuple):
    """The reply to a `set_format` call."""

    #: Of the queue, until now.
    before: int
    #: Processes that read no format as late as the chosen one.
    behind: int


def set_format(
    keys: DeliveryKeys, format: int, step: Step, *, now_us: int | None = None
) -> Call[FormatSet]:
    """Choose the format of a queue; nothing is changed where its own is later than this version reads."""
    return Call(
        load_script(PACKAGES, "set_format"),
        (keys.control,),
        (_now(now_us), format, signing.FORMAT, ENROLLED_MS, step),
        lambda reply: FormatSet(*reply),
    )


#: The hashes that `sweep` looks through. A note goes once its locator has gone.
SWEPT = ("locators", "headers", "errors", "unique", "notes", "claims")


class Swept(NamedTuple):
    """The reply to a `sweep` call."""

    #: 0 at the end.
    cursor: int
    forgotten: int


def sweep(
    keys: DeliveryKeys,
    which: str = "locators",
    *,
    cursor: int = 0,
    count: int = 100,
    now_us: int | None = None,
) -> Call[Swept]:
    """Forget what belongs to no job and no process any more, among about ``count`` fields of one hash of `SWEPT`."""
    return Call(
        load_script(PACKAGES, "sweep"),
        (
            keys.queue.timeout_set,
            keys.queue.destination,
            keys.locators,
            keys.unique,
            keys.headers,
            keys.notes,
            keys.claims,
            keys.payloads,
            keys.errors,
            *(keys.leases, keys.retries, keys.returned),
            *(keys.held, keys.dead, keys.quarantine),
        ),
        (_now(now_us), which, cursor, count),
        lambda reply: Swept(int(reply[0]), reply[1]),
    )


class Which(StrEnum):
    """What `expire` deletes."""

    ALL = "all"
    #: What others have offered.
    FOREIGN = "foreign"
    #: Jobs of ours.
    JOBS = "jobs"


class Expired(NamedTuple):
    """The reply to an `expire` call."""

    deleted: int
    left: int
    #: Rank to go on with, or -1 at the end.
    next_rank: int
    #: When the oldest that was deleted was put aside, epoch ms; -1: none was deleted.
    oldest_ms: int


def expire(
    keys: DeliveryKeys,
    *,
    state: State = State.DEAD,
    age_ms: int,
    kept: int = 0,
    which: Which = Which.ALL,
    first_rank: int = 0,
    batch: int = MAX_BATCH,
    byte_budget: int = BYTE_BUDGET,
    now_us: int | None = None,
) -> Call[Expired]:
    """Delete dead letters (or quarantined payloads) of some age from a rank on, the oldest first, all but ``kept``."""
    return Call(
        load_script(PACKAGES, "expire"),
        (
            keys.dead if state is State.DEAD else keys.quarantine,
            keys.headers,
            keys.payloads,
            keys.errors,
            keys.ended,
        ),
        (_now(now_us), age_ms, kept, which, first_rank, batch, byte_budget),
        lambda reply: Expired(*reply),
    )


def _new_request() -> str:
    """Make what tells the repeat of a call from another call."""
    return secrets.token_urlsafe(12)


def _now(now_us: int | None) -> Argument:
    return "" if now_us is None else now_us
