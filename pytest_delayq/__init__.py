"""The plugin of pytest: fixtures for the jobs that a test schedules, and a clean start for each test.

pytest loads it in every project of an environment, so it imports nothing: neither Django nor django-delayq. A package
below ``django_delayq`` would bring both.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what earlier tests scheduled, where nobody asked for a fixture."""
    capturing = sys.modules.get("django_delayq.testing.capture")
    if capturing is not None:
        capturing.clear_captured()
    mode = sys.modules.get("django_delayq.testing.mode")
    servers = sys.modules.get("django_delayq.testing.servers")
    if mode is not None and servers is not None and mode.is_of_run():
        servers.empty_server()


@pytest.fixture
def delayq() -> Iterator[Any]:
    """The jobs that the test schedules, as a list; nothing runs. See `django_delayq.testing.captured`."""
    from django_delayq.testing import captured

    with captured() as jobs:
        yield jobs


@pytest.fixture
def delayq_frozen() -> Iterator[Any]:
    """Keep queues in memory, with a clock that the test moves. See `django_delayq.testing.frozen_queue`."""
    from django_delayq.testing import frozen_queue

    with frozen_queue() as queue:
        yield queue


@pytest.fixture
def delayq_server() -> Iterator[str]:
    """Send jobs to a real server of this run, emptied for the test; the value is its URL."""
    from django_delayq.testing.servers import serving_run

    with serving_run() as url:
        yield url


@pytest.fixture
def delayq_worker(delayq_server: str) -> Iterator[Any]:
    """A worker in threads of this process, for all queues. It sees only rows that are committed."""
    from django_delayq.testing.servers import running_worker

    with running_worker() as worker:
        yield worker
