"""Batches: jobs that belong together, and the callback that starts once all of them have ended."""

from collections.abc import Sequence

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.store import NewJob
from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command


def open_batch(
    keys: DeliveryKeys, callback: NewJob, why: str, shards: int = 0
) -> Call[bool]:
    """Begin the batch whose id is the token of its callback, which is held from now on for the reason ``why``.

    It returns False if the batch was begun before, and is safe to repeat. ``shards``: see `Target`.
    """
    token, when, tail, payload = callback
    return bind("open", keys)(
        bool,
        token=token,
        when=when,
        tail=tail,
        payload=payload,
        why=why,
        shards=shards,
    )


def withdraw_batch(keys: DeliveryKeys, token: str) -> Call[bool]:
    """Undo `open_batch`, if the batch has got no job; return whether that was done now. Safe to repeat."""
    return bind("withdraw_callback", keys)(bool, token=token)


def close_batch(keys: DeliveryKeys, token: str) -> Call[bool]:
    """Close a batch: no more jobs come, and its callback continues once those that came have ended.

    It returns False if the batch was closed before, and is safe to repeat.
    """
    return bind("close", keys)(bool, token=token)


def count_left(keys: DeliveryKeys, token: str) -> Command[int]:
    """Count the jobs of a batch that have not ended."""
    return Command(("HMGET", keys.batches, token, f"open:{token}"), _read_left)


def _read_left(reply: Sequence[bytes | None]) -> int:
    count, is_open = reply
    return int(count or 0) - (is_open is not None)
