"""Whether a queue has jobs, for a caller that keeps them elsewhere until it has them for good."""

from collections.abc import Sequence
from functools import partial

from redis.client import Redis

from django_delayq.conf import QueueSettings
from django_delayq.core import store as store_calls
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.hand_over import HandOver
from django_delayq.transport.run import run


def known_since(
    client: Redis, queue: QueueSettings, tokens: Sequence[str]
) -> list[int | None]:
    """Return since when a queue has known each of these jobs, by the server's clock; None: it does not know it."""
    since: list[int | None] = []
    for start in range(0, len(tokens), MAX_BATCH):
        part = tokens[start : start + MAX_BATCH]
        seen = run(client, store_calls.when_sent(queue.keys, part))
        since += seen
    return since


def kept_since(
    client: Redis, queue: QueueSettings, tokens: Sequence[str]
) -> list[int | None]:
    """Return what `known_since` does, once the queue has those jobs for good: they may be deleted elsewhere.

    It waits for no failover: the caller tries again later.

    Raises:
        NotHandedOver: nothing may be deleted yet, see `HandOver`.
    """
    hand_over = HandOver(
        client, queue.keys, queue.durable, waits=queue.waits, is_patient=False
    )
    return hand_over.make(partial(known_since, client, queue, tokens))
