"""The settings that the API reads, a queue of the test's own, and a hand that plays the worker."""

from typing import Any

import pytest
import redis

from tests.jobs.hand import Hand
from tests.servers import ExternalServer, Server

#: Scheduled this far ahead, a job waits for the length of any test.
LATER = 3_600


@pytest.fixture
def queue(settings: Any, server: Server | ExternalServer, queue_name: str) -> str:
    """A configured queue on the server under test."""
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {queue_name: {}, f"{queue_name}-2": {}},
    }
    return queue_name


@pytest.fixture
def hand(client: "redis.Redis[bytes]", queue: str) -> Hand:
    return Hand(client, queue)
