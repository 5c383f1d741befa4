"""A real server for a run of tests, and a worker in a thread of the tests' process."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import mkdtemp

from redis.client import Redis

from django_delayq import conf
from django_delayq.clock import monotonic_ms
from django_delayq.core.queue_reads import counts
from django_delayq.embedded.embedded_server import ensure_server
from django_delayq.management.backends import listening
from django_delayq.slices import loaded
from django_delayq.testing import mode
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.transport.server import Server
from django_delayq.worker.parts import WorkerOptions
from django_delayq.worker.process import WorkerProcess

#: How long the worker of a test lets its jobs end.
GRACE_S = 5.0
#: Between two looks of `TestWorker.wait_until_idle`.
LOOK_S = 0.005
#: What is due this soon counts as due: start times are whole ms, so a job that was just scheduled for now may be due in
#: a moment.
SOON_MS = 20
#: For so long it waits.
PATIENCE_S = 10.0

# By process, as a forked one has a server of its own: its URL.
_urls: dict[int, str] = {}


def server_url() -> str:
    """Return the URL of this process's own server for tests; start it unless it runs. It ends with the process.

    Raises:
        EmbeddedServerError: the machine has no server program.
    """
    pid = os.getpid()
    if pid not in _urls:
        folder = mkdtemp(prefix="delayq-test-")
        _urls[pid] = ensure_server(Path(folder))
        # Also at the end of a process of multiprocessing, which `manage.py test --parallel` uses.
        Finalize(None, _remove, (pid, folder), exitpriority=0)
    return _urls[pid]


def _remove(pid: int, folder: str) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def run_server() -> Server:
    """Return the server of this run."""
    return replace(Server.at(server_url()), max_connections=None)


def empty_server() -> None:
    """Empty the server of this run, if it was started. Only this run has data there."""
    url = _urls.get(os.getpid())
    if url is not None:
        with Redis.from_url(url) as client:
            client.flushall()


@contextmanager
def serving_run() -> Iterator[str]:
    """Have jobs go to the server of this run, emptied; yield its URL."""
    server = run_server()
    empty_server()
    with mode.serving(server):
        yield server_url()


class TestWorker:
    """A worker in threads of this process: no supervisor and no signals, otherwise like ``manage.py delayq_worker``."""

    # pytest takes classes of this name for tests.
    __test__ = False

    def __init__(
        self, queues: Sequence[str] | None = None, *, threads: int = 2
    ) -> None:
        settings = conf.get_settings()
        self._queues = settings.queues_of(*queues or ())
        self._process = WorkerProcess(
            WorkerOptions(
                queues=[(queue, 1) for queue in self._queues],
                is_weighted=False,
                worker=replace(
                    settings.worker, threads=threads, grace_s=GRACE_S, heartbeat=None
                ),
                parts=loaded("part"),
                reports=loaded("report"),
            ),
            owner=os.urandom(8),
        )
        self._thread = threading.Thread(
            target=self._process.run, name="delayq-test-worker", daemon=True
        )
        self._interval_s = sys.getswitchinterval()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for running jobs to end, and give back the others."""
        self._process.loop.stop(GRACE_S)
        self._thread.join(2 * GRACE_S)
        self._process.close()
        sys.setswitchinterval(self._interval_s)

    def wait_until_idle(self, timeout: float = PATIENCE_S) -> None:
        """Wait until no job is due or running.

        Raises:
            TimeoutError: this takes longer than ``timeout`` seconds.
        """
        until_ms = monotonic_ms() + timeout * 1000
        pause = threading.Event()
        while busy := [name for name in map(self._busy, self._queues) if name]:
            if monotonic_ms() > until_ms:
                raise TimeoutError(
                    f"after {timeout:g} s the worker is still busy: {', '.join(busy)}"
                )
            pause.wait(LOOK_S)

    def _busy(self, queue: conf.QueueSettings) -> str:
        found = run(own_clients.of_thread(), counts(queue.keys))
        next_ms = found.next_ms
        is_soon = next_ms is not None and next_ms - found.now_ms <= SOON_MS
        if not (is_soon or found.due or found.destination or found.running):
            return ""
        due = max(found.due + found.destination, int(is_soon))
        return f"{queue.name} has {due} due and {found.running} running"


@contextmanager
def running_worker(queues: Sequence[str] | None = None) -> Iterator[TestWorker]:
    """Run a worker for these queues, by default all, during the block."""
    with listening():
        worker = TestWorker(queues)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()
