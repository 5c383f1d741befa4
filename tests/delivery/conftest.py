"""A queue under a clock of its own, checked at the end of every test."""

from collections.abc import Iterator

import pytest
import redis

from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import Bench

VARIANTS = {
    "new-listed": (FrameFormat.BC0LC0, True),
    "new-flat": (FrameFormat.BC0LC0, False),
    "old-listed": (FrameFormat.DLC0, True),
    "old-flat": (FrameFormat.DLC0, False),
}


@pytest.fixture
def bench(client: "redis.Redis[bytes]", queue_name: str) -> Iterator[Bench]:
    """A queue in the newer frame format, with Redisson's list."""
    bench = Bench(client, queue_name)
    yield bench
    if bench.is_checked:
        bench.check()


@pytest.fixture(params=list(VARIANTS))
def any_bench(
    request: pytest.FixtureRequest, client: "redis.Redis[bytes]", queue_name: str
) -> Iterator[Bench]:
    """A queue in each frame format, with and without Redisson's list."""
    frame_format, insertion_list = VARIANTS[request.param]
    bench = Bench(
        client,
        queue_name,
        frame_format=frame_format,
        insertion_list=insertion_list,
    )
    yield bench
    if bench.is_checked:
        bench.check()
