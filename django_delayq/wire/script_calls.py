"""Redisson's scripts, each described by one function without I/O: what to send, and how to read the reply.

Of our own keys, these scripts need only the counter of frames. Scripts that take elements out have to know of jobs,
and stand in the layers above: the transfer in ``core``, Redisson's removals in ``queues``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_delayq.redaction import brief
from django_delayq.transport.bind import binder
from django_delayq.transport.call import Call
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.published_reply import read_published
from django_delayq.wire.queue_keys import QueueKeys

#: Frames in one page, which takes some 0.5 ms of the server's time.
PAGE = 500

bind = binder("django_delayq.wire")


@brief
class Cursor(NamedTuple):
    """The place where a walk over the frames of a queue continues, as a script returned it."""

    #: An index of the delay queue, or a score of the timeout set.
    where: bytes | int = b""
    #: The frame seen last; it may be gone by the next call.
    frame: bytes = b""

    @property
    def is_at_end(self) -> bool:
        return self.where == b"end"


START = Cursor()


@brief
class FramePage(NamedTuple):
    """One page of the frames that wait."""

    #: Where the next page begins.
    cursor: Cursor
    #: Index of the first frame, from the head.
    first: int
    frames: list[bytes]


class Sought(NamedTuple):
    """Which of the payloads looked for a page contains."""

    #: Where the next page begins.
    cursor: Cursor
    #: Indexes of the payloads found, among those looked for.
    indexes: list[int]


def offer(
    keys: QueueKeys,
    payload: bytes,
    when: str,
    *,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
) -> Call[int]:
    """Store one payload until it is due; returns its start time, epoch ms. Not safe to repeat.

    ``when`` is what `parse_delay` returns: ``+`` and ms from now, or ``=`` and epoch ms.
    """
    return bind("offer", keys, counters=keys.own("counters"))(
        read_published,
        format=frame_format.number,
        listed=int(insertion_list),
        when=when,
        payload=payload,
        repeat=None,
    )


def read(
    keys: QueueKeys,
    cursor: Cursor = START,
    *,
    insertion_list: bool = True,
    page: int = PAGE,
) -> Call[FramePage]:
    """Read a page of the frames that wait, from the delay queue or, by start time, from the timeout set."""

    def read_reply(reply: list[Any]) -> FramePage:
        where, frame, first, frames = reply
        return FramePage(Cursor(where, frame), first, frames)

    source, walked = walk(keys, cursor, insertion_list=insertion_list, page=page)
    return bind("read", keys, walked=source)(read_reply, **walked)


def contains(
    keys: QueueKeys,
    payloads: Sequence[bytes],
    cursor: Cursor = START,
    *,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
    page: int = PAGE,
) -> Call[Sought]:
    """Look for payloads, all different, in a page of the frames that wait.

    A frame that fits both formats is read as ``frame_format``, as in `django_delayq.wire.frame.unpack`.
    """
    source, walked = walk(keys, cursor, insertion_list=insertion_list, page=page)
    return bind("contains", keys, walked=source)(
        _read_sought, **walked, format=frame_format.number, payloads=payloads
    )


def _read_sought(reply: list[Any]) -> Sought:
    where, frame, indexes = reply
    return Sought(Cursor(where, frame), indexes)


def walk(
    keys: QueueKeys, cursor: Cursor, *, insertion_list: bool, page: int
) -> tuple[str, dict[str, Any]]:
    """Return the key to walk, and the arguments, by name, that scripts with the ``walk`` prelude take."""
    source = keys.delay_queue if insertion_list else keys.timeout_set
    kind = "list" if insertion_list else "zset"
    return source, {"kind": kind, **cursor._asdict(), "count": page}
