"""A certificate of the right authority for another host is refused, whatever redis-py does by default."""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel

from django_delayq import BlockingQueue
from django_delayq.transport.clients import Clients
from django_delayq.transport.server import Server as OfTheServer
from django_delayq.transport.tls import unchecked, with_host_check
from tests.clusters import TestCluster
from tests.conftest import skip_old_redis_py
from tests.servers import Server
from tests.tls import KIND, OURS, Tls

OTHER = "redis.example.org"


@pytest.fixture
def other(tls: Tls) -> Iterator[Server]:
    """A server whose certificate is of the right authority, for another host."""
    tls.issue("server", OTHER)
    server = Server(KIND, {**tls.options(), "tls_auth_clients": "no"})
    yield server.start()
    server.stop()


@pytest.fixture
def sentinel(tls: Tls) -> Iterator[Server]:
    """A Sentinel with such a certificate."""
    tls.issue("server", OTHER)
    server = Server(KIND, tls.options(), arguments=("--sentinel",))
    yield server.start()
    server.stop()


def put(name: str, url: str, *, is_async: bool) -> None:
    queue = BlockingQueue(name, connection=url)
    if is_async:
        asyncio.run(queue.aput("a"))
    else:
        queue.put("a")


def ping(url: str | None, *, is_async: bool) -> None:
    clients = Clients.of(url)

    async def ping_on_the_loop() -> None:
        await (await clients.of_loop()).ping()

    if is_async:
        asyncio.run(ping_on_the_loop())
    else:
        clients.shared().ping()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
class TestCertificateForAnotherHost:
    def test_of_a_server(self, tls: Tls, other: Server, is_async: bool) -> None:
        url = tls.url(other.port)

        with pytest.raises(RedisConnectionError, match=r"127\.0\.0\.1"):
            ping(url, is_async=is_async)

        ping(f"{url}&ssl_check_hostname=false", is_async=is_async)

    def test_of_any_authority(self, tls: Tls, other: Server, is_async: bool) -> None:
        url = tls.url(other.port, ssl_ca_certs="other-ca.pem")

        ping(f"{url}&ssl_cert_reqs=none", is_async=is_async)

    def test_of_a_sentinel(self, tls: Tls, sentinel: Server, is_async: bool) -> None:
        url = tls.url(sentinel.port, **OURS).replace(
            f"rediss://127.0.0.1:{sentinel.port}/0",
            f"rediss+sentinel://127.0.0.1:{sentinel.port}/mymaster/0",
        )

        with pytest.raises(RedisConnectionError, match="no Sentinel of"):
            ping(url, is_async=is_async)

        with pytest.raises(RedisConnectionError, match="no primary named 'mymaster'"):
            ping(f"{url}&ssl_check_hostname=false", is_async=is_async)

    def test_of_a_node_that_another_names(self, tls: Tls, is_async: bool) -> None:
        skip_old_redis_py()
        tls.issue("other", OTHER)
        cluster = TestCluster(KIND, primaries=2, replicas=0, tls=tls)
        cluster.nodes[1].options |= tls.options("other")
        try:
            cluster.start()
            first, second = (each[0] for each in cluster.names_on_each())
            url = cluster.url.replace(f",127.0.0.1:{cluster.nodes[1].port}", "")

            put(first, url, is_async=is_async)
            with pytest.raises(RedisConnectionError, match=r"127\.0\.0\.1"):
                put(second, url, is_async=is_async)
            put(second, f"{url}&ssl_check_hostname=false", is_async=is_async)
        finally:
            cluster.stop()

    def test_of_the_server_of_a_cache(
        self, tls: Tls, other: Server, settings: Any, is_async: bool
    ) -> None:
        options: dict[str, Any] = {"CONNECTION_POOL_KWARGS": dict(tls.files())}
        settings.CACHES = {
            "jobs": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"rediss://127.0.0.1:{other.port}/0",
                "OPTIONS": options,
            }
        }
        settings.DELAYQ = {"CONNECTION": "jobs"}

        with pytest.raises(RedisConnectionError, match=r"127\.0\.0\.1"):
            ping(None, is_async=is_async)


@pytest.mark.parametrize(
    ("arguments", "checks_host", "told"),
    [
        ({}, True, ""),
        ({"ssl_check_hostname": None}, True, ""),
        ({"ssl_cert_reqs": "optional"}, True, ""),
        ({"ssl_check_hostname": False}, False, "ssl_check_hostname=false"),
        ({"ssl_cert_reqs": "none"}, False, "ssl_cert_reqs=none"),
        ({"ssl_cert_reqs": None}, False, "ssl_cert_reqs=none"),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, False, "ssl_cert_reqs=none"),
    ],
)
def test_only_what_is_written_turns_the_check_off(
    arguments: dict[str, Any], checks_host: bool, told: str
) -> None:
    assert with_host_check(arguments)["ssl_check_hostname"] is checks_host
    assert unchecked(arguments) == told


class TestWarning:
    @pytest.mark.parametrize(
        ("url", "warnings"),
        [
            ("redis://127.0.0.1:1", []),
            ("rediss://127.0.0.1:1", []),
            (
                "rediss://127.0.0.1:1?ssl_check_hostname=false",
                [
                    "ssl_check_hostname=false accepts a certificate for any host from the server"
                ],
            ),
            (
                "rediss://127.0.0.1:1?ssl_cert_reqs=none",
                ["ssl_cert_reqs=none accepts any certificate from the server"],
            ),
            (
                "rediss+sentinel://127.0.0.1:1/m?ssl_check_hostname=false",
                ["for any host from the server", "for any host from the Sentinels"],
            ),
            (
                "rediss+cluster://127.0.0.1:1,127.0.0.1:2?ssl_cert_reqs=none",
                ["any certificate from the server"],
            ),
        ],
    )
    def test_says_what_is_turned_off(
        self, settings: Any, url: str, warnings: list[str]
    ) -> None:
        if "cluster" in url:
            skip_old_redis_py()
        settings.DELAYQ = {"CONNECTION": url}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        told = [each.msg for each in found if each.id == "django_delayq.W009"]
        assert len(told) == len(warnings)
        for message, warning in zip(told, warnings, strict=True):
            assert warning in message

    def test_is_for_clients_that_others_made(self) -> None:
        manager = Sentinel(
            [("127.0.0.1", 1)],
            sentinel_kwargs={"ssl": True, "ssl_check_hostname": False},
        )
        client = manager.master_for("m", ssl=True, ssl_cert_reqs="none")

        assert OfTheServer.of(client).unchecked() == {
            "server": "ssl_cert_reqs=none",
            "Sentinels": "ssl_check_hostname=false",
        }
