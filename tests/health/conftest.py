"""Users of the server with few rights."""

import uuid
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.servers import ExternalServer, Server

User = Callable[..., redis.Redis]


@pytest.fixture
def user(server: Server | ExternalServer, client: redis.Redis) -> Iterator[User]:
    """Make users with the rights that a test gives, and return a client that logs in as each."""
    names = []

    def make(*rules: str) -> redis.Redis:
        name = f"user-{uuid.uuid4().hex[:8]}"
        names.append(name)
        client.execute_command("ACL", "SETUSER", name, "on", ">pw", *rules)
        return server.client(username=name, password="pw")

    yield make
    for name in names:
        client.execute_command("ACL", "DELUSER", name)
