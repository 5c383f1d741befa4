"""No test of this folder names a server: the queues are those below, and nothing answers at the connection."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testing import samples


@pytest.fixture(autouse=True)
def _queues(settings: Any) -> Iterator[None]:
    settings.DELAYQ = {"QUEUES": {"default": {}, "mail": {}}}
    samples.RAN.clear()
    samples.MOMENTS.clear()
    yield
    samples.RAN.clear()
