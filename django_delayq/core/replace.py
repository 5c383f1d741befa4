"""Giving a job that waits, and holds a unique key, what a later call of that key asks for."""

from typing import Any, NamedTuple

from django_delayq.core.bounds import REPEAT_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.queue_reads import Inspected, read_inspected
from django_delayq.core.scripts import bind
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.wire.published_reply import note_refusal


class Replaced(NamedTuple):
    """The reply to a `replace` call."""

    #: REPLACED; KEPT, if nothing had to change; or the state of a job that does not wait, or holds the key no more.
    outcome: Change | State
    #: The job as it is now; None if the job was left alone.
    seen: Inspected | None


@brief
class Linked(NamedTuple):
    """The reply if the holder's payload may name jobs that follow it, or a batch: nothing was changed."""

    #: The holder's payload, which nobody has checked.
    payload: bytes
    #: The part of its signature by which a script knows it.
    mac: bytes


def replace(
    keys: DeliveryKeys,
    holder: str,
    later: NewJob,
    *,
    payload: bytes = b"",
    moves: str = "",
    max_wait_ms: int | None = None,
    linked: bytes = b"",
) -> Call[Replaced | Linked]:
    """Change the job that holds the key of a later call. Safe to repeat.

    ``payload`` is the later call, signed for the holder's token; empty: the holder's arguments stay. ``moves`` says
    which of both start times counts: the ``later`` or the ``sooner``; empty: the holder's. ``max_wait_ms`` bounds for
    how long a later time is taken, from when the first call of the key was scheduled.
    """
    longest = "" if max_wait_ms is None else max_wait_ms
    return bind("replace", keys)(
        _read_replaced,
        holder=holder,
        request=later.token,
        when=later.when,
        moves=moves,
        longest_ms=longest,
        tail=later.tail,
        payload=payload,
        linked=linked,
        window_ms=REPEAT_MS,
    )


def _read_replaced(reply: list[Any]) -> Replaced | Linked:
    outcome, seen, payload, mac, refusal = reply
    text = outcome.decode()
    if refusal:
        note_refusal(refusal)
    if text == "linked":
        return Linked(payload, mac)
    if not seen:
        return Replaced(State(text), None)
    return Replaced(Change(text), read_inspected(seen))
