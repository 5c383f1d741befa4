"""Which keys lie on a node of a cluster that has failed: what would fail as well is not asked for."""

from collections.abc import Sequence

import msgspec
from redis import asyncio as aio
from redis.client import Redis

from django_delayq.transport.connections import has_nodes
from django_delayq.transport.errors import node_named_by


class Neighbours(msgspec.Struct, frozen=True):
    """Say of each key whether it lies on the node that an error concerns. The node itself is not asked."""

    error: Exception
    keys: Sequence[str]

    def do(self, client: Redis) -> list[bool]:
        node = node_named_by(self.error)
        if not node or not has_nodes(client):
            return [False] * len(self.keys)
        found: list[bool] = client.lying_at(node, self.keys)  # type: ignore[attr-defined]
        return found

    async def ado(self, client: aio.Redis) -> list[bool]:
        node = node_named_by(self.error)
        if not node or not has_nodes(client):
            return [False] * len(self.keys)
        found: list[bool] = await client.lying_at(node, self.keys)  # type: ignore[attr-defined]
        return found
