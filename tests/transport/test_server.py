import gc
from typing import Any

import pytest
import redis
import redis.asyncio

from django_delayq.exceptions import InvalidSettings
from django_delayq.transport import pool as pools
from django_delayq.transport.cluster import server_at
from django_delayq.transport.server import Server

URL = "unix:///run/redis.sock?db=3&client_name=jobs&max_connections=7"


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_pools_of_both_kinds_lead_to_the_server_of_a_client(kind: Any) -> None:
    server = Server.of(kind.from_url(URL, decode_responses=True))

    for pool in (server.pool(), server.async_pool()):
        arguments = pool.connection_kwargs
        assert arguments["path"] == "/run/redis.sock"
        assert (arguments["db"], arguments["client_name"]) == (3, "jobs")
        assert arguments["decode_responses"] is False
        assert pool.make_connection() is not None


def test_pool_of_ours_has_a_twin_as_well() -> None:
    """It packs calls in a way that no asyncio connection knows."""
    server = Server.of_pool(Server.at(URL).pool())

    assert server.async_pool().make_connection() is not None


def test_limit_of_a_url_is_that_of_its_pools() -> None:
    server = Server.at(URL)

    assert server.pool().max_connections == 7
    assert server.async_pool().max_connections == 7


def test_limit_of_a_url_does_not_hold_up_threads_that_each_keep_a_connection() -> None:
    assert server_at(URL).pool().max_connections > 7  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_pools_have_time_outs_though_the_client_gives_none(kind: Any) -> None:
    """redis-py before 8 gives its connections None for both."""
    theirs = kind(socket_timeout=None, socket_connect_timeout=None)
    server = Server.of(theirs)

    for pool in (server.pool(), server.async_pool()):
        arguments = pool.connection_kwargs
        assert arguments["socket_timeout"] == 5.0
        assert arguments["socket_connect_timeout"] == 3.0


def test_class_of_connections_without_a_twin_is_an_error_that_says_what_to_do() -> None:
    class Own(redis.connection.AbstractConnection):
        pass

    server = Server(Own, {})

    with pytest.raises(InvalidSettings, match="type Own; give a URL"):
        server.async_pool()


def test_server_shows_no_password() -> None:
    assert "secret" not in repr(Server.at("redis://:secret@h"))


def test_full_pool_looks_for_lost_connections_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Server.at(URL.replace("max_connections=7", "max_connections=1")).pool()
    held = pool.make_connection()
    pool._in_use_connections.add(held)
    looks: list[float] = []

    for now_ms in (0.0, 1.0, pools.LOOK_MS - 1.0, pools.LOOK_MS + 1.0):
        with monkeypatch.context() as context:
            context.setattr(pools, "monotonic_ms", lambda at=now_ms: at)
            context.setattr(gc, "collect", lambda at=now_ms: looks.append(at))
            with pytest.raises(redis.ConnectionError):
                pool.make_connection()

    assert looks == [0.0, pools.LOOK_MS + 1.0]
