import pytest

from django_delayq.exceptions import InvalidSettings
from django_delayq.queues.blocking import BlockingQueue


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
