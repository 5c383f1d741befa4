"""Fixtures for tests of the backend: settings and workers as in tests/worker."""

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.worker.process import DONE
from tests.worker.conftest import configure, program, records, work
from tests.worker.workers import InlineWorker

__all__ = ["configure", "program", "records", "work"]


@pytest.fixture
def burst(work: Callable[..., InlineWorker]) -> Callable[..., None]:
    """Run what is due in the test's queue, and what becomes due in doing so; return when nothing is."""

    def run(queues: Any = None, **options: Any) -> None:
        assert work(queues, is_burst=True, **options).join() == DONE

    return run
