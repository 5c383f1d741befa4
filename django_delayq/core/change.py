"""Changes to a job that does not run: cancel, reschedule, reprioritize, retry, discard."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django_delayq.core.bounds import REPEAT_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind, new_request
from django_delayq.core.states import Change, State
from django_delayq.redaction import brief
from django_delayq.transport.call import Call
from django_delayq.wire.published_reply import note_refusal, read_published
from django_delayq.wire.signatures import TOKEN_LENGTH

#: Jobs of one `cancel_many` call: some 4 ms of the server's time, besides the search for them in the delay queue.
CANCEL_BATCH = 100
#: The same for elements that others have offered: each takes a scan of the delay queue.
FOREIGN_BATCH = 4


@brief
class Kept(NamedTuple):
    """A cancelled job, and what depended on it."""

    #: What its record says of the end.
    text: bytes
    #: For how long each record is kept, ms, by the token of its job; of others there is none.
    ttl_ms: Mapping[str, int]


_NOTHING = Kept(b"", {})


def cancel_many(
    keys: DeliveryKeys,
    tokens: Iterable[str],
    *,
    keep_ended: int = 0,
    kept: Kept = _NOTHING,
) -> Iterator[Call[dict[str, Change | State]]]:
    """Cancel jobs unless they run, some hundred a call: the jobs of a call share a scan of the delay queue.

    Each call returns how that went with its own jobs, or the state in which a job was left, by token. With
    ``keep_ended``, the queue remembers this number of its last ended jobs, these included.
    """
    ours: list[str] = []
    foreign: list[str] = []
    for token in dict.fromkeys(tokens):
        (ours if len(token) == TOKEN_LENGTH else foreign).append(token)
    # Only our own frames are found there without a scan for each.
    for group, size in ((ours, CANCEL_BATCH), (foreign, FOREIGN_BATCH)):
        for start in range(0, len(group), size):
            batch = group[start : start + size]
            yield _cancel(keys, batch, keep_ended, kept)


def _cancel(
    keys: DeliveryKeys,
    tokens: Sequence[str],
    keep_ended: int,
    kept: Kept,
) -> Call[dict[str, Change | State]]:
    def read(reply: list[bytes]) -> dict[str, Change | State]:
        return dict(zip(tokens, map(_read_cancelled, reply), strict=True))

    named = {"last_ended": keys.last_ended} if keep_ended else {}
    results = [keys.result(token) for token in tokens if token in kept.ttl_ms]
    return bind("cancel", keys, **named)(
        read,
        more_keys=results,
        keep_ended=keep_ended,
        text=kept.text,
        jobs=[(token, kept.ttl_ms.get(token, b"")) for token in tokens],
        window_ms=REPEAT_MS,
    )


def _read_cancelled(reply: bytes) -> Change | State:
    text = reply.decode()
    # A job that was cancelled before is left in the state of that name: to the caller it is the same.
    return Change(text) if text in (Change.CANCELLED, Change.NOTED) else State(text)


def reschedule(
    keys: DeliveryKeys, token: str, when: str
) -> Call[tuple[Change | State, int]]:
    """Move a job unless it runs; returns how that went, or the state it was left in, and its start time (epoch ms)."""
    return bind("reschedule", keys)(
        _read_rescheduled,
        token=token,
        when=when,
        request=new_request(),
        window_ms=REPEAT_MS,
    )


def _read_rescheduled(reply: list[Any]) -> tuple[Change | State, int]:
    outcome, start_time_ms, refusal = reply
    if refusal:
        note_refusal(refusal)
    text = outcome.decode()
    return (
        Change(text) if text in (Change.RESCHEDULED, Change.NOTED) else State(text)
    ), int(start_time_ms)


def reprioritize(keys: DeliveryKeys, token: str, priority: int) -> Call[Change | State]:
    """Give a job that waits another priority; returns how that went, or the state it was left in. Safe to repeat."""
    return bind("reprioritize", keys)(
        _read_reprioritized, token=token, priority=priority
    )


def _read_reprioritized(reply: bytes) -> Change | State:
    text = reply.decode()
    return Change(text) if text == Change.REPRIORITIZED else State(text)


def replay(
    keys: DeliveryKeys,
    tokens: Sequence[str],
    *,
    state: State = State.DEAD,
    when: str = "+0",
) -> Call[int]:
    """Run dead letters (or quarantined payloads) again, from their first attempt; returns how many were there."""
    graves = keys.dead if state is State.DEAD else keys.quarantine
    return bind("replay", keys, graves=graves)(
        read_published,
        more_keys=map(keys.result, tokens),
        when=when,
        request=new_request(),
        tokens=tokens,
        window_ms=REPEAT_MS,
    )


def discard(
    keys: DeliveryKeys, tokens: Sequence[str], *, state: State = State.DEAD
) -> Call[int]:
    """Delete dead letters (or quarantined payloads) for good; returns how many were there."""
    graves = keys.dead if state is State.DEAD else keys.quarantine
    return bind("discard", keys, graves=graves)(
        request=new_request(), tokens=tokens, window_ms=REPEAT_MS
    )
