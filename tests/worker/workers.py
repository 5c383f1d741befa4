"""Two ways to run a worker in a test: inside this process, quickly; or as a program, with all its processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from django_delayq import conf
from django_delayq.core import queue_reads
from django_delayq.core.queue_reads import Counts
from django_delayq.slices import loaded
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker.memory_limit import MemoryLimit
from django_delayq.worker.parts import WorkerOptions
from django_delayq.worker.process import WorkerProcess
from django_delayq.worker.queue_state import QueuePart, QueueState
from tests import forked
from tests.polling import PATIENCE_S, wait_until

#: In place of the alarm's cap, which would wake a worker that was told nothing.
NEVER_MS = 600_000
ROOT = Path(__file__).parents[2]
MANAGE = Path(__file__).parent / "project" / "manage.py"


Part = TypeVar("Part", bound=QueuePart)


class InlineWorker:
    """One worker process's worth of threads in this process: no supervisor, no signals.

    ``queues`` are names in order of priority, or names with weights. ``cap_ms`` is the alarm's: where a test is about
    what wakes the worker, the safety wake-up must not.
    """

    def __init__(
        self,
        queues: Sequence[str] | Mapping[str, float],
        *,
        is_burst: bool = False,
        max_jobs: int | None = None,
        memory_limit: MemoryLimit | None = None,
        cap_ms: float | None = None,
        **worker: Any,
    ) -> None:
        settings = conf.get_settings()
        weights = (
            dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1.0)
        )
        self.owner = os.urandom(8)
        self.process = WorkerProcess(
            WorkerOptions(
                queues=[
                    (queue, weight)
                    for name, weight in weights.items()
                    for queue in settings.queues_of(name)
                ],
                is_weighted=isinstance(queues, Mapping),
                worker=conf.WorkerSettings(**{"threads": 4, "grace_s": 5.0, **worker}),
                parts=loaded("part"),
                reports=loaded("report"),
                is_burst=is_burst,
                max_jobs=max_jobs,
            ),
            owner=self.owner,
            memory_limit=memory_limit,
        )
        if cap_ms is not None:
            self.loop.alarm.cap_ms = cap_ms
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, name="inline-worker")

    @property
    def loop(self) -> Any:
        return self.process.loop

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def state(self) -> str:
        """Describe what it knows, for who has waited in vain."""
        queues = [
            {name: getattr(queue, name) for name in vars(queue) if name != "settings"}
            for queue in self.loop.queues.values()
        ]
        running = [(each.id, each.verdict) for each in list(self.loop.dispatch.running)]
        return f"{queues}\n{running}\n{vars(self.loop)}"

    def _run(self) -> None:
        self.status = self.process.run()

    def start(self) -> "InlineWorker":
        self._thread.start()
        return self

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop as SIGTERM does."""
        if self._thread.ident is not None:
            self.loop.stop(grace_s)
            self.join()
        self.process.close()

    def holds(self) -> list[Any]:
        """Return what its threads run, which may go on when it has ended."""
        dispatch = self.loop.dispatch
        threads, coroutines = dispatch.threads, dispatch.coroutines
        held = zip(threads._threads, threads._held, strict=True)
        running = [attempt for thread, attempt in held if attempt and thread.is_alive()]
        if coroutines._thread is not None and coroutines._thread.is_alive():
            running += coroutines.attempts()
        return running

    def join(self) -> int | None:
        """Wait for an end of its own."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the worker does not end"
        return self.status


class WorkerProgram:
    """``manage.py delayq_worker`` as a process of its own."""

    def __init__(
        self,
        *arguments: str,
        directory: Path,
        environment: Mapping[str, str],
        root: Path = ROOT,
    ) -> None:
        """Describe a program of a checkout; it is not started."""
        manage = root / MANAGE.relative_to(ROOT)
        # Another checkout has another package.
        self._start = forked.Popen if root == ROOT else subprocess.Popen
        self.command = [sys.executable, str(manage), "delayq_worker", *arguments]
        self.environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        self.environment.pop("DJANGO_SETTINGS_MODULE", None)
        self.directory = directory
        number = len(list(directory.glob("log-*")))
        self.log_path = directory / f"log-{number}"
        self.output_path = directory / f"output-{number}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> "WorkerProgram":
        with self.log_path.open("ab") as log, self.output_path.open("ab") as output:
            self.process = self._start(
                self.command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                # An interrupt at the terminal is for the tests.
                start_new_session=True,
            )
        return self

    def children(self) -> list[int]:
        """Return the pids of its worker processes."""
        return children_of(self.pid)

    def wait_for_processes(self) -> "WorkerProgram":
        """Wait until it has started a worker process: from then on it heeds signals."""
        wait_until(
            lambda: self.children() or not self.is_running,
            description=f"a process has been started; the log: {self.log}",
        )
        assert self.is_running, self.log
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit status."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the worker does not end within {timeout} s; its log:\n{self.log}"
            ) from None

    def wait_for_log(self, text: str, timeout: float = PATIENCE_S) -> None:
        wait_until(
            lambda: text in self.log or (not self.is_running and "ended"),
            description=f"{text!r} in the worker's log",
            timeout=timeout,
        )
        assert text in self.log, self.log

    def stop(self) -> int:
        """End it as an administrator does."""
        if self.is_running:
            self.signal(signal.SIGTERM)
        return self.wait()

    def destroy(self) -> None:
        """End it and whatever it has started, for certain."""
        if self.process is None:
            return
        # Children outlive a supervisor that was killed, but stay in its group.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def kill(pid: int, number: int) -> bool:
    """Send a signal to a process that a test started; False: it has ended already."""
    assert pid > 1, "0 is this process and all its like"
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children_of(parent: int) -> list[int]:
    """Return the pids of the living children of a process."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    try:
        lists = [path.read_text() for path in tasks]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []
    children = [int(pid) for pids in lists for pid in pids.split()]
    return [pid for pid in children if is_alive(pid)]


def workers_of(queue: str) -> list[int]:
    """Return the pids of all worker processes that serve a queue, supervisors included."""
    told = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=1) for line in told.stdout.splitlines()]
    words = f"delayq_worker --queue {queue}"
    return [
        int(pid)
        for pid, *command in rows
        if words in "".join(command) and is_alive(int(pid))
    ]


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended; one that waits to be reaped has."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # After the name, which may hold anything.
    return told.rpartition(")")[2].split()[0] not in "ZX"


def counts(queue: str) -> Counts:
    """Count a queue."""
    keys = conf.get_settings().queue(queue).keys
    return run(own_clients.of_thread(), queue_reads.counts(keys))


def delayq_environment(delayq: Mapping[str, Any], records: Path) -> dict[str, str]:
    """Return what a worker program has to be told."""
    return {
        "WORKER_TEST_DELAYQ": json.dumps(delayq),
        "WORKER_TEST_RECORDS": str(records),
    }


def part_of(kind: type[Part], client: Any, settings: conf.QueueSettings) -> Part:
    """Return what a feature does for a queue, in a process that has just begun."""
    (part,) = QueueState(client, settings, 1, os.urandom(8), [kind]).parts
    assert isinstance(part, kind)
    return part


def part_in(worker: InlineWorker, queue: str, kind: type[Part]) -> Part:
    """Return what a feature does for a queue of a worker."""
    parts = worker.loop.queues[queue].parts
    return next(part for part in parts if isinstance(part, kind))
