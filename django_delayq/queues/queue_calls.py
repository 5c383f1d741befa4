"""Calls of the scripts behind `DelayedQueue` and `BlockingQueue` that touch our own keys, described without I/O."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from redis import asyncio as aio
from redis.client import Redis

from django_delayq.core.bounds import REPEAT_MS
from django_delayq.core.claim import Leased
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.transport.connections import has_nodes
from django_delayq.transport.run import arun, run
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.script_calls import PAGE, START, Cursor, walk

#: Frames of one `withdraw` call. Each is searched for from the end of the list.
WITHDRAW_BATCH = 100
#: How many elements of the delay queue an LREM passes in some 0.6 ms.
FAR = 20_000
#: Frames that `remove` leaves, to be taken out together. They are less than a page, so that the walk finds its
#: place again.
TOGETHER = 400
#: Or this many bytes of them.
TOGETHER_BYTES = 1 << 19
#: Jobs that one `clear` call forgets.
CLEAR_BATCH = 500


@brief
class Removed(NamedTuple):
    """The result of one `remove` call."""

    cursor: Cursor
    removed: int
    #: Frames to take out together with those of other pages: one by one, each would cost a good part of a scan.
    left: list[bytes]


class Cleared(NamedTuple):
    """The result of one `clear` call."""

    #: Whether the queue's elements are on their way out. Until then, the call works on another client's clear.
    has_begun: bool
    found_any: bool
    #: Frames still to be deleted.
    left: int


def remove(
    keys: DeliveryKeys,
    payloads: Sequence[bytes],
    which: str,
    cursor: Cursor = START,
    *,
    frame_format: FrameFormat = FrameFormat.BC0LC0,
    insertion_list: bool = True,
    page: int = PAGE,
) -> Call[Removed]:
    """Take out elements of one page by their payloads.

    ``frame_format`` decides about frames that fit both formats, as in `django_delayq.wire.frame.unpack`.
    ``which``: ``first``, the first element with one of the payloads (not safe to repeat); ``all``, all elements with
    one; ``others``, all elements without one.
    """
    _, walked = walk(keys.queue, cursor, insertion_list=insertion_list, page=page)
    return bind("remove", keys)(
        _read_removed,
        **walked,
        which=which,
        format=frame_format.number,
        far=FAR,
        payloads=payloads,
        repeat=None if which == "first" else {},
    )


def _read_removed(reply: list[Any]) -> Removed:
    where, frame, removed, left = reply
    return Removed(Cursor(where, frame), removed, left)


def withdraw(
    keys: DeliveryKeys,
    frames: Sequence[bytes],
    *,
    request: str,
    depth: int,
    from_tail: bool = False,
    target: DeliveryKeys | None = None,
    payload: bytes = b"",
    insertion_list: bool = True,
) -> Call[list[bool]]:
    """Take out frames that were read before. A single frame may go to the head of ``target``, as ``payload``.

    Return which frames were still there. A repeat with the same ``request`` returns the same and does nothing.
    ``depth`` says how far from the head, or the tail, of the delay queue the frames lie. Without ``insertion_list``
    the script looks them up instead.
    """
    targets = {}
    if target is not None:
        targets = {
            "target": target.queue.destination,
            "target_locators": target.locators,
        }
    return bind("withdraw", keys, **targets)(
        lambda reply: [flag == ord("1") for flag in reply],
        kind="list" if insertion_list else "zset",
        near="tail" if from_tail else "head",
        depth=depth,
        request=request,
        payload=payload,
        frames=frames,
        window_ms=REPEAT_MS,
    )


def clear(keys: DeliveryKeys, *, has_begun: bool = False) -> Call[Cleared]:
    """Delete all waiting elements. The first call hides them, and each call forgets some of the jobs among them."""
    return bind("clear", keys, cleared=keys.queue.own("cleared"))(
        lambda reply: Cleared(reply[0] == 1, reply[1] == 1, reply[2]),
        is_first=int(not has_begun),
        batch=CLEAR_BATCH,
    )


def confirm(keys: DeliveryKeys, jobs: Sequence[Leased], *, owner: bytes) -> Call[str]:
    """Confirm that leased elements were taken. Return a character each: ``1`` ours, ``0`` not ours, ``?`` unknown.

    Safe to repeat.
    """
    rows = [(job.token, job.fence) for job in jobs]
    return bind("confirm", keys)(
        lambda reply: str(reply, "ascii"), owner=owner, jobs=rows
    )


def put(keys: DeliveryKeys, payload: bytes) -> Call[int]:
    """Put a payload that looks like a job at the tail of the destination queue. Not safe to repeat."""
    return bind("put", keys)(payload=payload)


def first_that_holds(
    first: DeliveryKeys, others: Sequence[DeliveryKeys] = ()
) -> Call[int]:
    """Ask which of some queues is the first with a due element: its place among them, from 1; 0: none has one."""
    listed = [keys.queue.destination for keys in others]
    return bind("holds", first)(more_keys=listed)


class AnyHolds(msgspec.Struct, frozen=True):
    """Ask whether any of some queues has a due element: of one server at one moment, of a cluster one after the other."""

    queues: Sequence[DeliveryKeys]

    def do(self, client: Redis) -> bool:
        return any(run(client, call) > 0 for call in self._calls(client))

    async def ado(self, client: aio.Redis) -> bool:
        for call in self._calls(client):
            if await arun(client, call) > 0:
                return True
        return False

    def _calls(self, client: Any) -> Iterator[Call[int]]:
        groups = (
            [[keys] for keys in self.queues] if has_nodes(client) else [self.queues]
        )
        for first, *others in groups:
            yield first_that_holds(first, others)


def untake(keys: DeliveryKeys, jobs: Sequence[Leased], *, owner: bytes) -> Call[int]:
    """Put leased elements back, confirmed or not. Return how many were the caller's. Safe to repeat."""
    rows = [(job.token, job.fence, job.payload) for job in jobs]
    return bind("untake", keys)(owner=owner, jobs=rows)
