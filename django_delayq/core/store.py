"""Storing jobs to run later."""

import os
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from django_delayq.core.bounds import REPEAT_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.redaction import brief
from django_delayq.transport.bind import Bound
from django_delayq.transport.call import Argument, Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.script import rows
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.published_reply import note_refusal, read_published
from django_delayq.wire.signatures import TOKEN_LENGTH

#: Jobs of one `schedule` call: some 2.7 ms of the server's time.
SCHEDULE_BATCH = 500
#: How long `_sent.lua` keeps the token of a row of a database, and what it knows a forward by: a year.
ROW_MS = 365 * 86_400_000
#: How long the call that sends such a row is repeated. Whoever deletes the row keeps its token for twice as long.
ROW_REPEAT_MS = 60_000


class Scheduled(msgspec.Struct):
    """The result of `schedule` for one job."""

    #: Epoch ms, by the server's clock.
    start_time_ms: int
    #: Token of the job that holds the unique key, if the new job was not stored because of it; else empty.
    holder: str
    #: For a job that was stored before: how it has ended, or UNKNOWN if it has begun. UNCOMMITTED: it was not stored, as
    #: the queue is full. None: it waits.
    beyond: State | None = None
    #: How many jobs the full queue held.
    count: int = 0


@brief
class NewJob(NamedTuple):
    """One job to store."""

    token: str
    #: ``+`` and ms from now, or ``=`` and epoch ms.
    when: str
    #: What it keeps beside its payload, as `tail_of` makes it.
    tail: str | bytes
    payload: bytes


#: Flags of a tail, as `_job.lua` has them.
_DROPS, _IN_TURN = 1, 4
_IN_BATCH, _HAS_ON_DEAD, _HAS_TIMES, _BEHIND = 16, 32, 64, 128


def tail_of(
    unique: str,
    priority: int = 0,
    limit: str = "",
    *,
    drops: bool = False,
    in_turn: bool = False,
    notes_first: bool = False,
    may_go_behind: bool = False,
    has_on_dead: bool = False,
    batch: str = "",
    expires_ms: int = 0,
    since_ms: int = 0,
) -> str | bytes:
    """Return a tail as `_job.lua` reads it.

    ``unique`` is ``e`` (held to the job's end) or ``s`` (held to its start), then the key; or empty. Higher priorities
    come first. ``limit`` is the name of a limit, a zero byte, and a key, which may be empty. With ``drops``, a new job whose limit is full is cancelled instead of held; if nobody has said how many its
    limit admits, that is one at a time. With ``in_turn`` as well it is one at a time, and the job is held.

    ``notes_first``: the job keeps when it was scheduled, whatever calls of its key come later. ``may_go_behind``: if the
    holder of the key runs, the job is stored all the same, takes the key, and starts after the other's end.
    ``has_on_dead``: others follow the job once it is a dead letter. ``batch``: the token of the callback of its batch.
    ``expires_ms``: the job releases the key this long after its start time, unless it has begun; or after ``since_ms``
    (epoch ms), if that is later.
    """
    flags = (
        _DROPS * drops
        + _IN_TURN * (drops and in_turn)
        + _IN_BATCH * bool(batch)
        + _HAS_ON_DEAD * has_on_dead
        + _HAS_TIMES * (notes_first or bool(expires_ms))
        + _BEHIND * may_go_behind
    )
    if not priority and not limit and not flags:
        return unique
    named = limit.encode()
    run = b""
    if flags & _HAS_TIMES:
        # `schedule.lua` writes over the 1, and over the zeros behind these three.
        times = int(notes_first), expires_ms, since_ms
        run = b"".join(ms.to_bytes(6, "big") for ms in times)
    run += bytes(TOKEN_LENGTH * may_go_behind)
    extras = bytes((flags, 100 + priority, *divmod(len(named), 256)))
    return b"x" + extras + named + run + batch.encode() + unique.encode()


def key_in(tail: bytes) -> str:
    """Return the limit, or else the unique key, that a tail of `tail_of` has; empty: it has neither."""
    limit, unique = b"", tail
    if tail[:1] == b"x":
        flags, at = tail[1], 5 + int.from_bytes(tail[3:5], "big")
        limit = tail[5:at]
        at += 18 * bool(flags & _HAS_TIMES)
        at += TOKEN_LENGTH * (bool(flags & _BEHIND) + bool(flags & _IN_BATCH))
        unique = tail[at:]
    return (limit or unique[1:]).decode(errors="replace")


def new_token() -> str:
    """Make the token of a job: 22 characters, URL-safe."""
    # What secrets.token_urlsafe(16) does, in a third of its time.
    return b2a_base64(os.urandom(16)).translate(_URL_SAFE, b"=\n").decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@dataclass(frozen=True)
class Target:
    """The queue that jobs are stored in, and how they are written there."""

    keys: DeliveryKeys
    frame_format: FrameFormat = FrameFormat.BC0LC0
    #: Whether Redisson's list of all elements has them as well.
    insertion_list: bool = True
    #: How many shards the queue has. If it has another number, or is closed, the server's error says so.
    shards: int = 0
    #: With a number, either all new jobs of a call are stored or none is: a queue of that many takes no more. All that
    #: waits or runs counts, from Java too; dead letters and quarantined payloads do not.
    max_jobs: int | None = None

    @cached_property
    def unlimited(self) -> "Target":
        """The same for jobs that a full queue takes."""
        return replace(self, max_jobs=None)

    @cached_property
    def store_script(self) -> Bound:
        """The script that `store` calls, and its keys here."""
        keys, named = self.keys, dict[str, str]()
        order: tuple[str, ...] = ("when", "format", "payload")
        if self.insertion_list:
            named["delay_queue"] = keys.queue.delay_queue
        if self.max_jobs is not None:
            named |= _counted(keys) | {"destination": keys.queue.destination}
            order += ("most",)
        return bind("store", keys, order, **named)


def schedule(
    target: Target,
    jobs: Sequence[NewJob],
    *,
    are_rows: bool = False,
    has_batches: bool = False,
) -> Call[list[Scheduled]]:
    """Store up to `SCHEDULE_BATCH` jobs. Safe to repeat.

    ``are_rows``: they are rows of a database, which `store_rows` sends. ``has_batches``: one of them is in a batch.
    """
    keys, named = target.keys, dict[str, str]()
    most: dict[str, Any] = {}
    if target.max_jobs is not None:
        most["most"] = target.max_jobs
        named = _counted(keys)
    elif any(job.tail for job in jobs):
        # One with a unique key, perhaps.
        named = _waiting(keys)
    if are_rows:
        named["sent"] = keys.sent
    if has_batches:
        named["batches"] = keys.batches
    bound = bind("schedule", keys, **named)
    return bound(
        _read_scheduled,
        format=target.frame_format.number,
        listed=int(target.insertion_list),
        is_repeat=0,
        shards=target.shards,
        jobs=jobs,
        **most,
        repeat={bound.script.args.index("is_repeat"): "1"},
        window_ms=REPEAT_MS,
    )


def store_rows(target: Target, jobs: Sequence[NewJob]) -> Call[list[Scheduled]]:
    """Store jobs that are rows of a database. A token is stored once, until `let_go` or for a year.

    A full queue takes them all the same. A repeat is safe for as long.
    """
    call = schedule(target.unlimited, jobs, are_rows=True)
    return structs.replace(call.again(), window_ms=ROW_REPEAT_MS)


def when_sent(keys: DeliveryKeys, tokens: Sequence[str]) -> Command[list[int | None]]:
    """Return when the queue got each of these rows first, epoch ms by the server's clock; None: it does not know."""
    return Command(("ZMSCORE", keys.sent, *tokens), _read_when_sent)


def count_rows_from(
    keys: DeliveryKeys, tokens: Sequence[str], *, now_ms: int
) -> Command[int]:
    """Have the queue say of these rows that it has known them since ``now_ms``."""
    return _keep_until(keys, tokens, now_ms + ROW_MS)


def let_go(keys: DeliveryKeys, names: Sequence[str], *, now_ms: int) -> Command[int]:
    """Forget rows or forwards that are removed, once every call that still sends them has ended.

    ``names``: the tokens of the rows, or the names of the forwards.
    """
    return _keep_until(keys, names, now_ms + 2 * ROW_REPEAT_MS)


def _keep_until(
    keys: DeliveryKeys, tokens: Sequence[str], until_ms: int
) -> Command[int]:
    members = [part for token in tokens for part in (until_ms, token)]
    return Command(("ZADD", keys.sent, "XX", *members))


def store(
    target: Target, job: NewJob, *, has_batches: bool = False
) -> Call[list[Scheduled]]:
    """Do as `schedule` for one job, in half the server's time if nothing has to be looked up for it.

    Not for a pipeline, which would not make the full call where this one replies nil.
    """
    _, when, tail, payload = job
    if tail or not payload.startswith(signatures.JOB_START):
        return schedule(target, [job], has_batches=has_batches)
    args: list[Argument] = [when, target.frame_format.number, payload]
    if target.max_jobs is not None:
        args.append(target.max_jobs)
    script, keys = target.store_script
    # Not a function in this one: each variable that it shared would be kept in a cell, a tenth of what this costs.
    full = partial(schedule, target, [job])
    return Call(script, keys, args, _read_stored, {}, REPEAT_MS, full)


def _counted(keys: DeliveryKeys) -> dict[str, str]:
    """Return the keys by which a script learns how many jobs a queue holds, beside those that it always gets."""
    return _waiting(keys) | {"held": keys.held}


def _waiting(keys: DeliveryKeys) -> dict[str, str]:
    """Return the keys by which a script learns when a job is due that holds a unique key."""
    return {"returned": keys.returned, "retries": keys.retries, "leases": keys.leases}


def _read_when_sent(reply: list[Any]) -> list[int | None]:
    return [None if score is None else int(float(score)) - ROW_MS for score in reply]


def _read_stored(reply: int | list[Any]) -> list[Scheduled]:
    # A script says more than a number only if it was not allowed to publish.
    number = reply if isinstance(reply, int) else read_published(reply)
    return [Scheduled(number, "")]


def _read_scheduled(reply: list[Any]) -> list[Scheduled]:
    refusal, others, *starts = reply
    if refusal:
        note_refusal(refusal)
    found = [Scheduled(start_time_ms, "") for start_time_ms in starts]
    for index, outcome in rows(others or (), 2):
        one = found[index]
        if outcome[:1] == b"=":
            found[index] = Scheduled(
                0, "", State(outcome[1:].decode()), one.start_time_ms
            )
        else:
            one.holder = outcome.decode()
    return found
