"""A queue under a clock of its own, checked at the end of every test."""

from collections.abc import Iterator

import pytest
import redis

from django_delayq.wire.frame import FrameFormat
from tests.core.rig import Rig

VARIANTS = {
    "new-listed": (FrameFormat.BC0LC0, True),
    "new-flat": (FrameFormat.BC0LC0, False),
    "old-listed": (FrameFormat.DLC0, True),
    "old-flat": (FrameFormat.DLC0, False),
}


@pytest.fixture
def rig(client: "redis.Redis[bytes]", queue_name: str) -> Iterator[Rig]:
    """A queue in the newer frame format, with Redisson's list."""
    rig = Rig(client, queue_name)
    yield rig
    if rig.is_checked:
        rig.check()


@pytest.fixture(params=list(VARIANTS))
def any_rig(
    request: pytest.FixtureRequest, client: "redis.Redis[bytes]", queue_name: str
) -> Iterator[Rig]:
    """A queue in each frame format, with and without Redisson's list."""
    frame_format, insertion_list = VARIANTS[request.param]
    rig = Rig(
        client,
        queue_name,
        frame_format=frame_format,
        insertion_list=insertion_list,
    )
    yield rig
    if rig.is_checked:
        rig.check()
