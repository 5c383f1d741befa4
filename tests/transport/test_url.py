import traceback
from typing import Any

import pytest
from redis.connection import SSLConnection

from django_delayq.exceptions import DelayqError, InvalidSettings
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.redaction import redact_url
from django_delayq.transport.cluster import Cluster, server_at
from django_delayq.transport.url import read_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/abc",
        "redis://h:6379/1/2",
        "redis://h/-1",
        "rediss://h/0x1",
        "redis://h/ 1",
        "redis://h?pasword=secret",
        "redis://h?protocol=7",
        "unix://:a/b@/run/redis.sock",
        "redis+cluster://h1:7000,h2:7001/1",
        "redis+cluster://h1:7000,h2:7001?db=2",
        "redis+cluster://h1:7000,",
        "redis+cluster://",
        "redis+cluster://h1:7000,h2:port",
        "rediss+cluster://h1?pasword=secret",
        "unix+cluster:///run/redis.sock",
    ],
)
def test_url_that_redis_py_would_misread_is_refused(url: str) -> None:
    """It would take another database or path, or raise a TypeError at the first command."""
    with pytest.raises(InvalidSettings, match="its database is a number"):
        BlockingQueue("q", connection=url)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h/", "redis://h/3", "rediss://h/3/", "redis://h?db=3"]
)
def test_url_with_or_without_a_database_is_read(url: str) -> None:
    BlockingQueue("q", connection=url)


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis+cluster://h", [("h", 6379)]),
        ("redis+cluster://h1:7000,h2:7001", [("h1", 7000), ("h2", 7001)]),
        ("redis+cluster://u:p%2C@h1:7000,h2/0", [("h1", 7000), ("h2", 6379)]),
        (
            "rediss+cluster://:p@[::1]:7000,h2/?protocol=2",
            [("::1", 7000), ("h2", 6379)],
        ),
    ],
)
def test_url_of_a_cluster_names_its_nodes(url: str, nodes: Any) -> None:
    BlockingQueue("q", connection=url)

    cluster = server_at(read_url(url))

    assert isinstance(cluster, Cluster)
    assert cluster.nodes == nodes
    assert issubclass(cluster.server.connection_class, SSLConnection) == (
        url.startswith("rediss")
    )
    assert cluster.server.arguments.get("password") == (
        {"u:": "p,", ":p": "p"}.get(url.partition("://")[2][:2])
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "redis+cluster://u:secret@h1:7000,h2:7001",
            "redis+cluster://u:***@h1:7000,h2:7001",
        ),
        ("redis+cluster://h1:7000,h2:7001/0", "redis+cluster://h1:7000,h2:7001/0"),
        ("redis+cluster://h1:secret,h2:7001", "redis+cluster://h1:***"),
        ("redis://h1,secret:7000,h2", "redis://h1,secret:***"),
    ],
)
def test_url_of_a_cluster_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize("cls", [BlockingQueue, DelayedQueue])
@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("q", "redis://:hunter2@h/abc"),
        ("x}y", "redis://:hunter2@h/0"),
        ("q", "redis+cluster://:hunter2@h1,h2/1"),
        ("x}y", "redis+cluster://:hunter2@h1,h2"),
    ],
)
def test_no_frame_of_an_error_shows_the_password(cls: Any, name: str, url: str) -> None:
    """Django's debug page shows the variables of every frame, also where something else was wrong."""
    with pytest.raises(DelayqError) as caught:
        cls(name, connection=url)

    # The first is the test's own.
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)][1:]
    assert frames
    for frame in frames:
        assert "hunter2" not in repr(frame.f_locals)
