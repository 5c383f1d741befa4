"""The first bytes of frames: their format, what a Redisson makes of them, and their codec can be read there."""

from typing import Any, Literal, NamedTuple

from django_delayq.codecs.guess import LOOKED_AT
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.script import rows
from django_delayq.wire.frame import READ_BY_SIZE
from django_delayq.wire.script_calls import START, Cursor

#: How the free bytes of our frames begin, outside the delay queue and inside it. `_frame.lua` has the same marks.
UNLISTED = b"\xd9U"
LISTED = b"\xd9L"
#: About how many bytes one call reads or rewrites; these take some 3 ms.
BYTE_BUDGET = 1 << 19
#: First bytes of each frame that a survey reads: they show its format, what a Redisson makes of it, and its codec.
HEAD_BYTES = max(READ_BY_SIZE, 17 + LOOKED_AT)

#: Frames that are looked at, and the bytes that the server reads of them.
HEAD_FRAMES = 50
HEADS_BYTES = 1 << 16

#: What a walk goes through: the delay queue from its tail, or the timeout set by start time.
Kind = Literal["tail", "zset"]


@brief
class FrameHead(NamedTuple):
    """One frame as a survey sees it."""

    #: Start time, epoch ms, of any value; None: the frame is only in the delay queue.
    score: float | None
    size: int
    #: At most `HEAD_BYTES` of it.
    head: bytes


class Stretch(NamedTuple):
    """The reply to a `survey` call."""

    now_ms: int
    cursor: Cursor
    frames: list[FrameHead]


def survey(
    keys: DeliveryKeys,
    kind: Kind,
    cursor: Cursor = START,
    *,
    batch: int = MAX_BATCH,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Stretch]:
    """Read how a stretch of frames begins."""
    return bind("survey", keys)(
        _read_stretch,
        kind=kind,
        where=cursor.where,
        frame=cursor.frame,
        count=batch,
        budget=byte_budget,
        cut=HEAD_BYTES,
    )


def _read_stretch(reply: list[Any]) -> Stretch:
    now_ms, where, last, flat = reply
    frames = [
        FrameHead(float(score) if score else None, size, head)
        for score, size, head in rows(flat, 3)
    ]
    return Stretch(now_ms, Cursor(where, last), frames)


def read_heads(keys: DeliveryKeys) -> Call[Stretch]:
    """Read how the next frames of a queue begin."""
    return survey(keys, "zset", batch=HEAD_FRAMES, byte_budget=HEADS_BYTES)


def is_numbered(head: bytes) -> bool:
    """Return whether a frame begins as ours do; so does one in 32,768 of Java's."""
    return head.startswith((LISTED, UNLISTED), int(head[:1] == b"\x08"))
