"""What real servers say about themselves."""

import redis

from django_delayq.health.facts import ask
from tests.servers import ExternalServer, Server


def test_valkey_is_not_taken_for_the_redis_it_claims_to_be(
    client: redis.Redis, server: Server | ExternalServer
) -> None:
    facts = ask(client)

    assert facts.version == server.version
    assert (facts.product == "Valkey") == (server.kind == "valkey")
    assert facts.role == "primary"
