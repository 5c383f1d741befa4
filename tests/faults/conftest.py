"""Fixtures of the scenarios: a server of the test's own that forgets nothing, its clock, worker programs, a ledger.

``lasting``, ``program``, ``work`` and ``records`` are those of the worker's tests.
"""

# Fixtures are imported to be found, and named again to be asked for.
# ruff: noqa: F401, F811

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.clock import KINDS, ServerClock
from tests.faults.ledger import Ledger
from tests.queues.proxy import Proxy
from tests.servers import LASTING, Server
from tests.worker.conftest import (
    configure,
    program,
    records,
    work,
)
from tests.worker.records import Records
from tests.worker.workers import WorkerProgram, delayq_environment


@pytest.fixture
def use(
    settings: Any, queue_name: str, configure: Any
) -> Callable[..., dict[str, Any]]:
    """Point ``DELAYQ`` at a server, or at a URL: ``use(server, {"MAX_ATTEMPTS": 2}, LEASE=2)``."""

    def use(
        server: Any, options: dict[str, Any] | None = None, /, **worker: Any
    ) -> dict[str, Any]:
        settings.DELAYQ = {
            "CONNECTION": server if isinstance(server, str) else server.socket_url,
            "QUEUES": {"default": {}, queue_name: options or {}},
            "WORKER": worker,
        }
        return settings.DELAYQ

    return use


@pytest.fixture
def lasting(private_server: Callable[..., Server], use: Any) -> Server:
    """A server of this test's own that keeps what it has acknowledged; ``DELAYQ`` names it."""
    server = private_server(**LASTING)
    use(server)
    return server


@pytest.fixture
def server_clock(server_kind: str, tmp_path: Path) -> ServerClock:
    """The clock of ``stepped``."""
    if server_kind not in KINDS:
        pytest.skip(f"{server_kind} does not start under faketime")
    return ServerClock(tmp_path / "clock")


@pytest.fixture
def stepped(server_kind: str, server_clock: ServerClock, use: Any) -> Iterator[Server]:
    """A lasting server of this test's own whose clock can be stepped; ``DELAYQ`` names it."""
    server = Server(server_kind, LASTING, environment=server_clock.environment).start()
    use(server)
    yield server
    server.stop()


@pytest.fixture
def proxy(lasting: Server) -> Iterator[Proxy]:
    """A line to ``lasting`` that fails on demand; who is to use it is told ``proxy.url``."""
    proxy = Proxy(lasting)
    yield proxy
    proxy.close()


@pytest.fixture
def ledger(tmp_path: Path, records: Records) -> Iterator[Ledger]:
    """What was scheduled, started, ended and told; shown where the test fails."""
    ledger = Ledger(tmp_path / "ledger", records)
    yield ledger
    print(ledger)


@pytest.fixture
def programs(
    program: Callable[..., WorkerProgram],
    settings: Any,
    queue_name: str,
    records: Records,
) -> Callable[..., list[WorkerProgram]]:
    """Start worker programs of one process each for the test's queue, and wait for their processes.

    ``connection`` is where these look for the server, where that is not what ``DELAYQ`` says.
    """

    def start(
        count: int, *arguments: str, connection: str | None = None
    ) -> list[WorkerProgram]:
        delayq = settings.DELAYQ
        if connection is not None:
            delayq = {**delayq, "CONNECTION": connection}
        told = delayq_environment(delayq, records.path)
        started = [
            program(
                "--queue", queue_name, "--processes", "1", *arguments, environment=told
            )
            for _ in range(count)
        ]
        return [each.wait_for_processes() for each in started]

    return start
