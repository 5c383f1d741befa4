"""Queues whose number of shards on the server differs from the settings."""

from collections.abc import Callable, Mapping

from redis.client import Redis

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.shards import Held, Part, read_shards, shard_keys, words_of
from django_delayq.health.facts import replies_of
from django_delayq.health.problem import Level, ServerProblem


def find_other_shards(
    client: Redis,
    shards: Mapping[str, int],
    keys_of: Callable[[str], DeliveryKeys],
) -> dict[str, ServerProblem]:
    """Report queues that would be neither served nor scheduled to, as they have another number of shards, by name."""
    problems: dict[str, ServerProblem] = {}
    replies = replies_of(client, [read_shards(keys_of(name)) for name in shards])
    for (name, ours), found in zip(shards.items(), replies, strict=True):
        # Missing rights are reported with the commands themselves.
        if isinstance(found, Exception):
            continue
        if not found.differs(ours):
            continue
        theirs = found.pin.number
        parts = [shard_keys(keys_of(name), number) for number in range(theirs)]
        held = found.held if not theirs else Held()
        for part in replies_of(client, [read_shards(part) for part in parts]):
            if isinstance(part, Part):
                held = held.plus(part.held)
        what, hint = words_of(name, theirs, ours, held)
        # An empty queue takes the number of the first worker.
        level = Level.ERROR if any(held) else Level.WARNING
        problems[name] = ServerProblem(level, what, hint)
    return problems
