import traceback
from typing import Any

import pytest

from django_delayq.exceptions import DelayqError, InvalidSettings
from django_delayq.queues.blocking import BlockingQueue
from django_delayq.queues.delayed import DelayedQueue


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
    ],
)
def test_url_that_redis_py_would_misread_is_refused(url: str) -> None:
    """It would take another database or path, or raise a TypeError at the first command."""
    with pytest.raises(InvalidSettings, match="its database a number"):
        BlockingQueue("q", connection=url)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h/", "redis://h/3", "rediss://h/3/", "redis://h?db=3"]
)
def test_url_with_or_without_a_database_is_read(url: str) -> None:
    BlockingQueue("q", connection=url)


@pytest.mark.parametrize("cls", [BlockingQueue, DelayedQueue])
@pytest.mark.parametrize(
    ("name", "url"),
    [("q", "redis://:hunter2@h/abc"), ("x}y", "redis://:hunter2@h/0")],
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
