"""Connections of our own beside a client's."""

from typing import Any

import pytest

from django_delayq.waiting.connection import DedicatedConnection

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("needs_one", [True, False])
def test_password_lets_in_whoever_the_client_lets_in(
    private_server: Any, needs_one: bool
) -> None:
    """A client of RESP3 names the user, and then a server without a password does not mind one."""
    server = private_server(**({"requirepass": "secret"} if needs_one else {}))
    client = server.client(password="secret", protocol=3)
    connection = DedicatedConnection(client, deadline_s=30)
    try:
        assert client.ping()
        assert connection.command("PING") == b"PONG"
    finally:
        connection.close()
