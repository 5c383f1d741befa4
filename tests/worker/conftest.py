"""Fixtures for tests that run workers: the settings, what the jobs recorded, workers that end with the test.

One kind of server does for most of them; with ``--all``, those marked with `every_server` run on each.
"""

import faulthandler
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.polling import wait_until
from tests.servers import Server
from tests.worker.records import ENVIRONMENT, Records
from tests.worker.workers import InlineWorker, WorkerProgram, delayq_environment


def every_server(function: Any) -> Any:
    """Mark a test that is worth its time on every kind of server."""
    function.runs_on_every_server = True
    return function


@pytest.fixture
def records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_name: str
) -> Iterator[Records]:
    """What the jobs of this test recorded."""
    path = tmp_path / "records"
    monkeypatch.setenv(ENVIRONMENT, str(path))
    records = Records(path, queue_name)
    yield records
    records.let_go()


@pytest.fixture
def configure(
    settings: Any, server: Server, queue_name: str
) -> Callable[..., dict[str, Any]]:
    """Set ``DELAYQ``: the test's queue with some options, and more queues whose names begin with its."""

    def configure(
        options: dict[str, Any] | None = None, /, worker: Any = None, **more: Any
    ) -> dict[str, Any]:
        queues = {"default": {}, queue_name: options or {}}
        queues |= {f"{queue_name}-{name}": value for name, value in more.items()}
        settings.DELAYQ = {
            "CONNECTION": server.socket_url,
            "QUEUES": queues,
            "WORKER": worker or {},
        }
        return settings.DELAYQ

    configure()
    return configure


@pytest.fixture
def work(
    configure: Any, records: Records, queue_name: str
) -> Iterator[Callable[..., InlineWorker]]:
    """Start workers inside this process; they end with the test. By default for the test's queue."""
    workers: list[InlineWorker] = []

    def start(queues: Any = None, **options: Any) -> InlineWorker:
        worker = InlineWorker(queues or [queue_name], **options)
        workers.append(worker)
        return worker.start()

    yield start
    # Shown where the test has failed.
    print(*records.all(), sep="\n")
    print(*(worker.state() for worker in workers), sep="\n")
    # In C: Python cannot walk the frames of a thread that runs meanwhile.
    faulthandler.dump_traceback(file=sys.__stderr__)
    for worker in workers:
        worker.stop(grace_s=0)
    # What outlives its worker would record, fail and log in the middle of a later test.
    records.let_go()
    for worker in workers:
        wait_until(
            lambda worker=worker: not worker.holds(), description="all have ended"
        )


@pytest.fixture
def program(
    configure: Any, records: Records, tmp_path: Path, settings: Any
) -> Iterator[Callable[..., WorkerProgram]]:
    """Start worker programs with the settings of the test; they end with it."""
    programs: list[WorkerProgram] = []

    def describe(
        *arguments: str, environment: dict[str, str] | None = None, **options: Any
    ) -> WorkerProgram:
        told = delayq_environment(settings.DELAYQ, records.path) | (environment or {})
        each = WorkerProgram(
            *arguments, directory=tmp_path, environment=told, **options
        )
        programs.append(each)
        return each

    def start(*arguments: str, **options: Any) -> WorkerProgram:
        return describe(*arguments, **options).start()

    start.describe = describe  # type: ignore[attr-defined]
    yield start
    for each in programs:
        each.destroy()
