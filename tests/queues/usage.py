"""How many users the transfer of a queue has, as its service counts them."""

from redis.client import Redis

from django_delayq.queues.transfer.service import QueueTransferService
from django_delayq.waiting.connection import address_of


def usage(service: QueueTransferService, client: Redis, name: str) -> int:
    """Return how many users a queue has."""
    server = service._servers.get(address_of(client))
    return 0 if server is None else server.usages.get(name, 0)
