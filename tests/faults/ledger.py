"""What was scheduled, started, ended and told, in files outside the server.

Tasks write their own lines, see ``tests.worker.records``; the test adds what it did and what it was told.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_delayq import Job, schedule
from tests.polling import PATIENCE_S, wait_until
from tests.worker.records import Records


@dataclass(frozen=True)
class Run:
    """One time that a function of a job ran, as its own process told it."""

    job: str
    pid: int
    #: By this machine's clock, epoch ms.
    started_ms: float
    #: None: it runs, or its process died.
    ended_ms: float | None
    attempt: int
    kills: int


class Ledger:
    """Reads what tasks that record ``start`` and ``end`` did, and keeps what the test was told."""

    def __init__(self, path: Path, records: Records) -> None:
        self.path = path
        self.records = records

    def schedule(self, task: Any, delay: Any, *args: Any, **kwargs: Any) -> Job[Any]:
        """Schedule a job and note it once that is told."""
        job = schedule(task, delay, *args, **kwargs)
        self.note("scheduled", job.id)
        return job

    def attempt(self, job: str, what: str, act: Callable[[], object]) -> object:
        """Call something for a job and note what came of it: its reply, or its error, which is returned."""
        try:
            told: object = act()
        except Exception as error:
            told = error
        self.note("told", job, what=what, reply=repr(told))
        return told

    def note(self, step: str, job: str, **more: Any) -> None:
        """Add a line of the test's own."""
        line = {"step": step, "job": job, "at_ms": time.time_ns() / 1e6, **more}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def told(self, step: str = "told") -> list[dict[str, Any]]:
        """Return the test's own lines of a step, in order."""
        if not self.path.exists():
            return []
        lines = map(json.loads, self.path.read_text().splitlines())
        return [line for line in lines if line["step"] == step]

    @property
    def scheduled(self) -> list[str]:
        """The ids of all jobs that were scheduled through this ledger, in order."""
        return [line["job"] for line in self.told("scheduled")]

    def runs(self, job: str | None = None) -> list[Run]:
        """Return the runs so far, of one job or of all, by their start."""
        open_runs: dict[tuple[str, int, int, int], dict[str, Any]] = {}
        runs: list[Run] = []

        def close(line: dict[str, Any], ended_ms: float | None) -> None:
            runs.append(
                Run(
                    line["job"],
                    line["pid"],
                    line["at_ms"],
                    ended_ms,
                    line["attempt"],
                    line["kills"],
                )
            )

        for line in self.records.all():
            key = (line["job"], line["pid"], line["attempt"], line["kills"])
            if line["step"] == "start":
                if key in open_runs:
                    close(open_runs.pop(key), None)
                open_runs[key] = line
            elif line["step"] == "end":
                close(open_runs.pop(key), line["at_ms"])
            elif line["step"] == "run":
                close(line, line["at_ms"])
        for line in open_runs.values():
            close(line, None)
        return sorted(
            (run for run in runs if job in (None, run.job)),
            key=lambda run: run.started_ms,
        )

    def pids(self, jobs: Iterable[str] | None = None) -> dict[str, int]:
        """Return the process of the last run of each job."""
        wanted = None if jobs is None else set(jobs)
        return {
            run.job: run.pid
            for run in self.runs()
            if wanted is None or run.job in wanted
        }

    def wait_for_starts(self, count: int, *, timeout: float = PATIENCE_S) -> list[Run]:
        """Wait until so many runs have begun, of all jobs together."""
        return wait_until(
            lambda: len(runs := self.runs()) >= count and runs,
            description=f"{count} runs have begun: {self}",
            timeout=timeout,
        )

    def wait_for_ends(self, count: int, *, timeout: float = PATIENCE_S) -> list[Run]:
        """Wait until so many runs have ended, of all jobs together."""
        return wait_until(
            lambda: (
                len(ended := [run for run in self.runs() if run.ended_ms]) >= count
                and ended
            ),
            description=f"{count} runs have ended: {self}",
            timeout=timeout,
        )

    def repeated(self) -> dict[str, list[Run]]:
        """Return the runs of each job that ran more than once."""
        by_job: dict[str, list[Run]] = {}
        for run in self.runs():
            by_job.setdefault(run.job, []).append(run)
        return {job: runs for job, runs in by_job.items() if len(runs) > 1}

    def __str__(self) -> str:
        own = self.path.read_text() if self.path.exists() else ""
        return "\n".join([own, *map(str, self.runs())])
