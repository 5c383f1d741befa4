"""No test of this folder names a server: the queues are those below, and nothing answers at the connection."""

import threading
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


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """A transfer that outlives its test would run scripts in memory in the middle of a later one."""
    before = threading.enumerate()
    yield
    transfers = [
        each
        for each in threading.enumerate()
        if each.name.startswith("delayq-transfer") and each not in before
    ]
    assert not transfers
