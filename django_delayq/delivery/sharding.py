"""How the shards of a queue are named, which of them a key leads to, and what the server knows of them.

Each shard is a queue of its own: its keys share a slot, and Redisson knows it by its name. Facts on all shards of a
queue are kept in the slot of its bare name. docs/wire-format.md, "Shards".
"""

from typing import NamedTuple
from zlib import crc32

from django_delayq.calls.call import Call
from django_delayq.calls.script import bind
from django_delayq.delivery.binding import PACKAGES
from django_delayq.delivery.keys import DeliveryKeys

#: The most shards of a queue. Each worker process claims from all of them.
MOST_SHARDS = 64


def shard_name(queue: str, number: int) -> str:
    """Return the name of a shard; ``number`` counts from 0."""
    return f"{queue}:{number}"


def parse_shard(name: str) -> tuple[str, int] | None:
    """Return the queue and the number that a shard's name is made of; None if this is no such name."""
    queue, colon, number = name.rpartition(":")
    if not colon or not queue or not (number.isascii() and number.isdigit()):
        return None
    if len(number) > 2 or str(int(number)) != number or int(number) >= MOST_SHARDS:
        return None
    return queue, int(number)


def shard_of(key: str, shards: int) -> int:
    """Return the number of the shard that a key leads to, the same in every process and version."""
    return crc32(key.encode()) % shards


def share_of(total: int, number: int, shards: int) -> int:
    """Return a shard's share of a number; the first shards take the rest."""
    return total // shards + (number < total % shards)


class Shards(NamedTuple):
    """The shards of a queue, as the server knows them."""

    #: The most that the queue ever had; 0: none.
    most: int
    #: How many keep unique keys, limits and schedules; 0: what has the bare name; None: nobody has said so.
    with_keys: int | None


def pin_shards(keys: DeliveryKeys, shards: int = 0, with_keys: int = 0) -> Call[Shards]:
    """Say how many shards a queue has; with 0, only ask. The first process fixes how many keep keys."""
    return Call(
        *bind(PACKAGES, "pin_shards", keys)(shards=shards, with_keys=with_keys),
        _read_shards,
    )


def _read_shards(reply: list[int]) -> Shards:
    most, with_keys = reply
    return Shards(most, None if with_keys < 0 else with_keys)
