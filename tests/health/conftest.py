"""Users of the server who may do little."""

import uuid
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.servers import ExternalServer, Server

User = Callable[..., redis.Redis]


@pytest.fixture
def user(server: Server | ExternalServer, client: redis.Redis) -> Iterator[User]:
    """Make a user with these rights alone, and return a client of it."""
    names = []

    def make(*rules: str) -> redis.Redis:
        name = f"user-{uuid.uuid4().hex[:8]}"
        names.append(name)
        client.execute_command("ACL", "SETUSER", name, "on", ">pw", *rules)
        return server.client(username=name, password="pw")

    yield make
    for name in names:
        client.execute_command("ACL", "DELUSER", name)
