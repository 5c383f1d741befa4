"""What jobs did, durably: one line a step in a file, written at once, so that a killed process leaves its own.

Where to write is in the environment, so that it is the same in the test and in every worker.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from django_delayq.jobs.context import current_job

ENVIRONMENT = "WORKER_TEST_RECORDS"


def record(step: str, **more: Any) -> None:
    """Note a step of the job that runs here."""
    at_ns = time.time_ns()
    job = current_job()
    line = {
        "step": step,
        "job": job.id if job else None,
        "attempt": job.attempts + 1 if job else None,
        "kills": job.kills if job else None,
        "pid": os.getpid(),
        "at_ms": at_ns / 1e6,
        **more,
    }
    # One write at the end of the file: lines of several processes do not mix.
    fd = os.open(os.environ[ENVIRONMENT], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def gate_of_test() -> Path:
    """Return the file that lets the tasks of a test go on, see `Records.let_go`."""
    return Path(os.environ[ENVIRONMENT] + ".go")


class Records:
    """Reads what was recorded, of one test's queues where their prefix is given; each look reads only what is new."""

    def __init__(self, path: Path, queues: str = "") -> None:
        self.path = path
        # A job of an earlier test may still run in a thread of this process, and writes where this one's are to write.
        self.queues = queues
        self._lines: list[dict[str, Any]] = []
        self._offset = 0

    def all(self, step: str | None = None) -> list[dict[str, Any]]:
        """Return the records so far, in order; of one step, or all."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in map(json.loads, whole.splitlines()):
                if line["job"] is None or line["job"].startswith(self.queues):
                    self._lines.append(line)
        return [line for line in self._lines if step in (None, line["step"])]

    def jobs(self, step: str) -> list[str]:
        """Return the ids of the jobs that took a step, in order."""
        return [line["job"] for line in self.all(step)]

    def let_go(self) -> None:
        """Let tasks that hold go on, and those that come."""
        Path(f"{self.path}.go").touch()

    def count(self, step: str) -> int:
        return len(self.all(step))
