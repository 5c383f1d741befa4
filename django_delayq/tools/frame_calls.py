"""Operations on all frames of a queue, Java's too: each describes one bounded script call, without I/O.

They repair a queue that two generations of Redisson share. ``survey`` and ``reframe`` decide how often to call, and
what to report.
"""

import secrets
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.frame_heads import BYTE_BUDGET, Kind
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.exceptions import DelayqError
from django_delayq.transport.call import Call
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.script_calls import START, Cursor


class ListBusy(DelayqError):
    """Raised when another process fills or empties the same list."""


class Reframed(NamedTuple):
    """The reply to a `reframe` call."""

    cursor: Cursor
    seen: int
    rewritten: int
    #: Of these only in the delay queue, from where nobody transfers them.
    alone: int
    quarantined: int


def reframe(
    keys: DeliveryKeys,
    kind: Kind,
    target: FrameFormat,
    cursor: Cursor = START,
    *,
    until_ms: float = inf,
    held: bytes = b"",
    batch: int = MAX_BATCH,
    lookups: int = 1,
    byte_budget: int = BYTE_BUDGET,
) -> Call[Reframed]:
    """Rewrite a stretch of frames to one format, and quarantine members that are not frames. Safe to repeat.

    A walk over the timeout set searches the delay queue for up to ``lookups`` frames, a scan each, and leaves frames
    that are due later than ``until_ms``. Any walk leaves a frame that begins with ``held``.
    """
    return bind("reframe", keys)(
        _read_reframed,
        kind=kind,
        where=cursor.where,
        frame=cursor.frame,
        until_ms=str(until_ms),
        target=target.number,
        count=batch,
        budget=byte_budget,
        lookups=max(1, lookups),
        seed=secrets.token_urlsafe(12),
        held=held,
    )


def _read_reframed(reply: list[Any]) -> Reframed:
    where, frame, seen, rewritten, alone, quarantined = reply
    return Reframed(Cursor(where, frame), seen, rewritten, alone, quarantined)


class FrameName(NamedTuple):
    """A name of a frame, without its payload."""

    start_time_ms: int
    format: FrameFormat
    random_id: bytes

    @property
    def row(self) -> tuple[int, int, bytes]:
        """The arguments by which scripts find it."""
        return self.start_time_ms, self.format.number, self.random_id


def drop_delivered(
    keys: DeliveryKeys, names: Sequence[FrameName], *, is_drop: bool = True
) -> Call[list[bool]]:
    """Take frames out of the timeout set if they are missing from the delay queue; a scan each.

    Returns which of them are missing, in the order given; with ``is_drop`` false it changes nothing.
    """
    return bind("drop_delivered", keys)(
        lambda reply: [flag == ord("1") for flag in reply],
        is_drop=int(is_drop),
        frames=[name.row for name in names],
    )


class ListStep(NamedTuple):
    """The reply to an `enlist` or `delist` call."""

    #: Frames looked at.
    seen: int
    #: Of these in the delay queue now.
    listed: int


def enlist(
    keys: DeliveryKeys,
    names: Sequence[FrameName],
    *,
    run: str,
    step: int,
    byte_budget: int = BYTE_BUDGET,
) -> Call[ListStep]:
    """Append waiting frames to the delay queue, in this order. Safe to repeat.

    ``run`` names the run, ``step`` counts its calls from 1. Reading the reply raises ListBusy while another run holds
    the list.
    """
    return bind("enlist", keys)(
        _list_step(keys),
        run=run,
        step=step,
        budget=byte_budget,
        frames=[name.row for name in names],
    )


def delist(
    keys: DeliveryKeys,
    *,
    run: str,
    step: int,
    batch: int,
    byte_budget: int = BYTE_BUDGET,
) -> Call[ListStep]:
    """Take up to ``batch`` waiting frames from the head of the delay queue; they still wait. Safe to repeat.

    Frames that are only in the delay queue go to its tail. ``run``, ``step`` and ListBusy as for `enlist`.
    """
    return bind("delist", keys)(
        _list_step(keys), run=run, step=step, budget=byte_budget, most=batch
    )


def _list_step(keys: DeliveryKeys) -> Callable[[list[Any]], ListStep]:
    def read(reply: list[Any]) -> ListStep:
        status, seen, listed = reply
        if status == b"busy":
            raise ListBusy(
                f"another process is filling or emptying the list of queue {keys.queue.name!r};"
                " wait until it ends, or half a minute if it was interrupted"
            )
        return ListStep(seen, listed)

    return read


def announce(keys: DeliveryKeys) -> Call[int]:
    """Publish the head's start time, so that every transfer looks at once; returns it (epoch ms), or -1 if none waits."""
    return bind("announce", keys)()
