"""Forwards: jobs that follow others into other queues, from the end of those until they are stored where they belong.

The queue in which the job before them ended keeps them. A process stores each in its own queue, and
then removes it there. Any process may repeat both: a queue knows which forwards it has got.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.store import ROW_REPEAT_MS, NewJob
from django_delayq.decoder import Decoder
from django_delayq.redaction import brief
from django_delayq.transport.call import Argument, Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.script import rows
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.signatures import TOKEN_LENGTH

#: How long after it was read a forward may be stored: half as long as `let_go` has it known.
GOOD_MS = ROW_REPEAT_MS
#: Queues that one count tells apart.
MOST_QUEUES = 1_000
#: Digits of the moment in a forward.
_DIGITS = 15

_REST: Decoder[tuple[str, bytes, bytes]] = Decoder(
    tuple[str, bytes, bytes], "a forward", form=msgspec.msgpack
)
_TOKEN = re.compile(rb"[\w-]{%d}" % TOKEN_LENGTH)
_WHEN = re.compile(r"[+=]\d{1,15}")


@brief
class Forward(NamedTuple):
    """One job that follows another into another queue."""

    job: NewJob
    #: When the job before it ended, epoch ms.
    ended_ms: int
    #: As the queue keeps it.
    member: bytes

    @property
    def name(self) -> str:
        """By what its queue knows it. If the job before it is retried and ends again, that makes another one."""
        return f"{self.job.token}{self.ended_ms:0{_DIGITS}}"


def text_before(queue: str) -> bytes:
    """Return what a forward to a queue begins with, up to the moment at which the job before it ended."""
    return queue.encode() + b"\0"


def text_behind(job: NewJob) -> bytes:
    """Return what a forward has behind that moment."""
    tail = job.tail if isinstance(job.tail, bytes) else job.tail.encode()
    rest = msgspec.msgpack.encode((job.when, tail, job.payload))
    return job.token.encode() + rest


def forward_of(queue: str, job: NewJob, ended_ms: int) -> Forward:
    """Return the forward that the end of the job before it has made."""
    moment = f"{ended_ms:0{_DIGITS}}".encode()
    return Forward(job, ended_ms, text_before(queue) + moment + text_behind(job))


def read_forward(member: bytes) -> Forward | None:
    """Read what a queue keeps; None: no code of this version has written it."""
    text = member.partition(b"\0")[2]
    moment, text = text[:_DIGITS], text[_DIGITS:]
    token, text = text[:TOKEN_LENGTH], text[TOKEN_LENGTH:]
    rest = _REST.read(text)
    if rest is None or not moment.isdigit() or not _TOKEN.fullmatch(token):
        return None
    when, tail, payload = rest
    if not _WHEN.fullmatch(when):
        return None
    return Forward(NewJob(token.decode(), when, tail, payload), int(moment), member)


class Waiting(NamedTuple):
    """The forwards of a queue to another one."""

    queue: str
    number: int
    #: When the job before the first of them ended, epoch ms.
    since_ms: int


class Forwards(NamedTuple):
    """The forwards that a queue keeps."""

    now_ms: int
    waiting: list[Waiting]

    def ages_s(self) -> list[tuple[Waiting, float]]:
        """Return each with how long its first has waited, in seconds."""
        return [
            (each, max(0, self.now_ms - each.since_ms) / 1000) for each in self.waiting
        ]


def forwards(keys: DeliveryKeys) -> Call[Forwards]:
    """Count what a queue has for others."""
    return bind("forwards", keys)(_read_forwards, most=MOST_QUEUES)


def _read_forwards(reply: list[Any]) -> Forwards:
    now_ms, flat = reply
    waiting = [
        Waiting(queue.decode(errors="replace"), number, since_ms)
        for queue, number, since_ms in rows(flat, 3)
    ]
    return Forwards(now_ms, waiting)


def sum_of(found: Sequence[Forwards]) -> Forwards:
    """Return what several queues have for others together."""
    together: dict[str, Waiting] = {}
    for queue, number, since_ms in (each for one in found for each in one.waiting):
        before = together.get(queue, Waiting(queue, 0, since_ms))
        together[queue] = Waiting(
            queue, before.number + number, min(before.since_ms, since_ms)
        )
    return Forwards(max(one.now_ms for one in found), list(together.values()))


def page(
    keys: DeliveryKeys, queue: str, *, after: bytes = b"", count: int
) -> Command[list[bytes]]:
    """Read some of what a queue has for another one, those first whose jobs before them ended first."""
    start = after or text_before(queue)
    end = b"(" + queue.encode() + b"\1"
    return Command(("ZRANGEBYLEX", keys.forwards, b"(" + start, end, "LIMIT", 0, count))


def remove(keys: DeliveryKeys, forwards: Sequence[Forward]) -> Command[int]:
    """Remove what has been stored in its own queue."""
    return Command(("ZREM", keys.forwards, *(each.member for each in forwards)))


class Received(NamedTuple):
    """The reply to a `receive` call."""

    now_ms: int
    #: The call came too late, and stored nothing.
    is_late: bool
    #: The tokens of those that were stored. Others were there already, or another job holds their unique key.
    stored: frozenset[str]


def receive(
    keys: DeliveryKeys,
    forwards: Sequence[Forward],
    *,
    until_ms: int,
    shards: int | None = None,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
) -> Call[Received]:
    """Store forwards in their queue. Each is stored once until `let_go`, or for a year.

    ``shards``: see `Target`; None: the caller does not know.
    ``until_ms``: `GOOD_MS` after they were read, by the clock of this queue. Later, another worker may have stored them,
    and had them forgotten.
    """
    followers: list[tuple[Argument, ...]] = []
    for index, (new, ended_ms, _) in enumerate(forwards):
        if new.when.startswith("+"):
            new = new._replace(when=f"={ended_ms + int(new.when[1:])}")
        followers.append((*new, index))
    return bind("receive", keys)(
        _read_received,
        until_ms=until_ms,
        shards="" if shards is None else shards,
        follower_count=len(forwards),
        follower_format=frame_format.number,
        follower_listed=int(insertion_list),
        names=[each.name for each in forwards],
        followers=followers,
    )


def _read_received(reply: list[Any]) -> Received:
    now_ms, is_late, tokens = reply
    return Received(now_ms, is_late == 1, frozenset(map(bytes.decode, tokens)))
