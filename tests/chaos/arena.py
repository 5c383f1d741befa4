"""One scenario: a server, workers, a load on them, a fault, and the judgement by what stands in files outside the server."""

import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.chaos.lines import Lines, now_ms
from tests.chaos.tasks import TICK_S, TICKS_QUEUE
from tests.clusters import TestCluster
from tests.faults.clock import ServerClock
from tests.polling import wait_until
from tests.replicas import Addressed
from tests.sentinels import Watched
from tests.servers import Server
from tests.worker.workers import MANAGE, ROOT, WorkerProgram, delayq_environment

QUEUE = "chaos"
#: The queue of a task that comes each second; no load schedules there.
TICKS = "ticks"
#: The lease of these workers, s: what a killed supervisor's children held runs again after it.
LEASE_S = 3
#: How long a process may go on after a fault was meant to end it, ms: this machine may be slow.
SLACK_MS = 1_000
#: A job may begin this much before its moment, ms: clocks are read one after the other.
EARLY_MS = 1.0
#: How long everything may take to come to its end after a fault, s.
SETTLE_S = 120.0
#: Each load numbers its jobs from a multiple of this.
JOBS_OF_A_LOAD = 1_000_000


#: What jobs are stored on: one server, two behind an address that moves, a primary with replicas that Sentinels watch, or a
#: cluster.
Place = Server | Addressed | Watched | TestCluster


class Span(NamedTuple):
    """A time, by `now_ms`."""

    from_ms: float
    until_ms: float

    def meets(self, from_ms: float, until_ms: float) -> bool:
        return from_ms <= self.until_ms and self.from_ms <= until_ms


@dataclass
class Verdict:
    """What became of the jobs of a scenario."""

    stored: int
    refused: int
    maybe: int
    ran: int
    #: Jobs that were stored and never ran, and that no fault excuses.
    lost: list[int]
    #: Those that a fault excuses, see `Arena.excuses` and `Arena.gone`.
    excused: int
    #: Jobs that began before their moment: number, and by how many ms.
    early: list[tuple[int, float]]
    #: Runs beyond the first that a fault explains, and jobs with runs that none explains.
    repeated: int
    doubled: list[int]
    #: Jobs that ran though `schedule()` had said that they were not stored.
    ghosts: list[int]
    #: Jobs that ran though `cancel()` had said that they are gone, and that no fault excuses.
    untrue: list[int]

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost or self.early or self.doubled or self.ghosts or self.untrue
        )

    def __str__(self) -> str:
        told = [f"{self.stored:,} stored", f"{self.ran:,} ran"]
        told += [f"{self.refused:,} refused"] * bool(self.refused)
        told += [f"{self.maybe:,} unknown"] * bool(self.maybe)
        told += [f"{self.excused:,} gone with the server's memory"] * bool(self.excused)
        told += [f"{self.repeated:,} runs repeated by the fault"] * bool(self.repeated)
        for name in ("lost", "early", "doubled", "ghosts", "untrue"):
            found = getattr(self, name)
            told.append(f"{name} {len(found)}" + (f" {found[:5]}" if found else ""))
        return ", ".join(told)


@dataclass
class Arena:
    """Servers, workers, loads and ledger of one scenario. `close` ends whatever it has started."""

    directory: Path
    place: Place
    #: Jobs a second of each load.
    per_second: float
    #: The queues and their options. Each has a load of its own.
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {QUEUE: {}})
    #: Where workers and load look for the server, if not at its socket.
    connection: str | None = None
    #: Whether a task comes each second, on the queue `TICKS`.
    ticks: bool = False
    evidence: list[str] = field(default_factory=list)
    #: While a fault was under way, jobs may run twice.
    troubles: list[Span] = field(default_factory=list)
    #: Jobs stored in these times may be lost, because nobody promised otherwise.
    excuses: list[Span] = field(default_factory=list)
    #: In these times a failover may throw away what was cancelled.
    lossy: list[Span] = field(default_factory=list)
    #: Jobs that may be lost, because a failover threw them away that nobody had waited to be replicated.
    gone: set[str] = field(default_factory=set)
    #: What the server's clock was less `now_ms`, ms, and the time in which it came to that.
    clocks: list[tuple[Span, float]] = field(default_factory=list)
    clock: ServerClock | None = None
    workers: list[WorkerProgram] = field(default_factory=list)
    loads: list["Load"] = field(default_factory=list)
    #: Called once all that was started has ended.
    at_end: list[Callable[[], None]] = field(default_factory=list)

    # What takes part.

    def __post_init__(self) -> None:
        #: What the jobs wrote.
        self.records = Lines(self.directory / "records")

    @property
    def server(self) -> Server:
        """The one server, of a fault that has no more."""
        assert isinstance(self.place, Server)
        return self.place

    def delayq(self, connection: str | None = None) -> dict[str, Any]:
        return {
            "CONNECTION": connection or self.connection or self.place.socket_url,
            "QUEUES": {"default": {}, TICKS: {}, **self.queues},
            "WORKER": {"LEASE": LEASE_S, "GRACE": 30},
        }

    def environment(self, connection: str | None = None) -> dict[str, str]:
        return {
            **delayq_environment(self.delayq(connection), self.records.path),
            "WORKER_TEST_APPS": "tests.chaos",
            **({TICKS_QUEUE: TICKS} if self.ticks else {}),
            # A worker notices by this what its server has forgotten.
            "WORKER_TEST_REGISTER_MS": "500",
        }

    def start_worker(
        self,
        *,
        connection: str | None = None,
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProgram:
        """Start a worker of one process."""
        worker = WorkerProgram(
            *(
                part
                for name in (*self.queues, *([TICKS] if self.ticks else []))
                for part in ("--queue", name)
            ),
            *("--processes", "1", "--threads", str(8 * len(self.queues))),
            directory=self.directory,
            environment={**self.environment(connection), **(environment or {})},
            root=root,
        )
        self.workers.append(worker.start())
        return worker.wait_for_processes()

    def start_load(
        self,
        *,
        queue: str = QUEUE,
        connection: str | None = None,
        root: Path = ROOT,
        how: str = "sync",
    ) -> "Load":
        """Have a program start to schedule; ``how`` is as `tests.chaos.load` has it."""
        path = self.directory / f"load-{len(self.loads)}"
        first = len(self.loads) * JOBS_OF_A_LOAD
        environment = self.environment(connection)
        load = Load(path, queue, environment, self.per_second, first, root, how)
        self.loads.append(load)
        return load

    def load_of(self, queue: str) -> "Load":
        """Return the first load of a queue."""
        return next(load for load in self.loads if load.queue == queue)

    def start_import(self, source: Server) -> "subprocess.Popen[str]":
        """Move what another server has of the first queue here, until nothing is left there."""
        command = ("delayq_import", "--from", source.socket_url, "--queue", QUEUE)
        return subprocess.Popen(
            [sys.executable, str(MANAGE), *command, "--until-empty", "--verbosity=0"],
            cwd=ROOT,
            env={**os.environ, **self.environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish_import(self, importing: "subprocess.Popen[str]", source: Server) -> str:
        """Wait for an import, repeat it until it exits with 0, and return the exit codes and the last words."""
        said, _ = importing.communicate(timeout=SETTLE_S)
        statuses = [importing.returncode]
        while statuses[-1]:
            assert len(statuses) < 5, said
            again = self.start_import(source)
            said, _ = again.communicate(timeout=SETTLE_S)
            statuses.append(again.returncode)
        return f"exit codes of the import: {statuses}; {said.strip()[-80:]}"

    def client(self) -> redis.Redis:
        """Return a new client of the server, of the primary that the Sentinels name, or of the cluster."""
        if isinstance(self.place, Watched):
            return self.place.primary.client()
        return self.place.client()

    # What happens.

    def prove(self, text: str) -> None:
        """Keep what shows that a fault has happened, in the server's own words where there are any."""
        self.evidence.append(text)

    def run_id(self) -> str:
        with self.client() as client:
            found: str = client.info("server")["run_id"]
        return found

    def prove_ticks(self, at_least: int) -> None:
        """Show that no moment of the task that comes each second was left out."""
        wait_until(
            lambda: self.count("tick") >= at_least,
            description=f"it came {at_least} times; {self.logs()}",
            timeout=SETTLE_S,
        )
        moments = {line["moment_s"] for line in self.records.all("tick")}
        missing = set(range(min(moments), max(moments), TICK_S)) - moments
        assert not missing, f"moments were left out: {missing}"
        self.prove(f"all {len(moments)} moments of a schedule came")

    def clock_ms(self) -> float:
        """Return by how many ms the server's clock is ahead of `now_ms`."""
        with self.client() as client:
            before_ms = now_ms()
            seconds, micros = client.time()
            after_ms = now_ms()
        offset: float = seconds * 1000 + micros / 1000 - (before_ms + after_ms) / 2
        return offset

    def let_it_run(self, jobs: int = 100) -> None:
        """Wait until so many more jobs have ended."""
        least = self.count("end") + jobs
        wait_until(
            lambda: self.count("end") >= least,
            description=f"{jobs} more jobs have run; {self.logs()}",
            timeout=SETTLE_S,
        )

    def wait_for_work(self, worker: WorkerProgram) -> None:
        """Wait until a job has ended in this worker."""
        wait_until(
            lambda: (
                {line["pid"] for line in self.records.all("end")}
                & set(worker.children())
            ),
            description=f"it works; {worker.log[-2_000:]}",
        )

    def count(self, step: str) -> int:
        return len(self.records.all(step))

    def logs(self) -> str:
        return "\n".join(worker.log[-4_000:] for worker in self.workers)

    def finish(self) -> Verdict:
        """Stop the load, wait until all that is to run has run, and judge."""
        for load in self.loads:
            load.stop()
        due_ms = max(
            (told["after_ms"] + told["delay_ms"] for told in self._told()), default=0
        )
        # Those of the settings, or their shards.
        queues = {
            told["job"].rpartition(":")[0] for told in self._told() if "job" in told
        }

        def is_over() -> bool:
            if now_ms() < due_ms:
                return False
            with self.client() as client:
                left = sum(waiting(client, queue) for queue in queues)
            return left == 0

        wait_until(is_over, description=f"all is done; {self.logs()}", timeout=SETTLE_S)
        for worker in self.workers:
            if worker.is_running:
                worker.stop()
        return self.judge()

    def close(self) -> None:
        for load in self.loads:
            load.kill()
        for worker in self.workers:
            worker.destroy()
        for clean_up in self.at_end:
            clean_up()

    # What is to be said of it.

    def _told(self) -> list[dict[str, Any]]:
        return [told for load in self.loads for told in load.told() if "n" in told]

    def judge(self) -> Verdict:
        """Compare what was told with what ran."""
        starts, ends = defaultdict[str, list[dict[str, Any]]](list), set[str]()
        for line in self.records.all():
            if line["step"] == "start":
                starts[line["job"]].append(line)
            elif line["step"] == "end":
                ends.add(line["job"])
        told = self._told()
        stored = kept(told)
        lost = [each for job, each in stored.items() if job not in ends]
        unexcused = [
            each["n"]
            for each in lost
            if each["job"] not in self.gone
            and not any(
                span.meets(each["before_ms"], each["after_ms"]) for span in self.excuses
            )
        ]
        early, repeated, doubled = [], 0, set[int]()
        for job, runs in starts.items():
            if job in stored:
                by_ms = self._early_by(stored[job], runs[0]["now_ms"])
                if by_ms > EARLY_MS:
                    early.append((stored[job]["n"], round(by_ms, 1)))
            for first, second in pairwise(runs):
                repeated += 1
                if not any(
                    span.meets(first["now_ms"] - SLACK_MS, second["now_ms"])
                    for span in self.troubles
                ):
                    doubled.add(first["n"])
        # A job that was refused has no id, only its number.
        ran = {runs[0]["n"] for runs in starts.values()}
        ghosts = [
            each["n"] for each in told if each["step"] == "refused" and each["n"] in ran
        ]
        untrue = [
            each["n"]
            for each in told
            if each["step"] == "cancelled"
            and each["job"] in starts
            and not any(
                span.meets(each["before_ms"], each["after_ms"])
                for span in (*self.excuses, *self.lossy)
            )
        ]
        return Verdict(
            len(stored),
            sum(each["step"] == "refused" for each in told),
            sum(each["step"] == "maybe" for each in told),
            len(ends),
            unexcused,
            len(lost) - len(unexcused),
            early,
            repeated - len(doubled),
            sorted(doubled),
            ghosts,
            untrue,
        )

    def _early_by(self, told: Mapping[str, Any], started_ms: float) -> float:
        """Return by how many ms a job has begun before its moment, by the server's clock."""
        # The moment counts from when the server took the call, at the earliest from when that was made. Where its clock
        # made a step meanwhile, nobody knows which one that met.
        due_ms = told["before_ms"] + told["delay_ms"]
        due_ms += min(self._clocks(told["before_ms"], told["after_ms"]))
        return (
            due_ms - started_ms - max(self._clocks(started_ms - SLACK_MS, started_ms))
        )

    def _clocks(self, from_ms: float, until_ms: float) -> list[float]:
        """Return what the server's clock may have been less `now_ms` at some moment of a time."""
        if not self.clocks:
            return [0.0]
        ends = [span.until_ms for span, _ in self.clocks[1:]] + [math.inf]
        return [
            offset
            for (span, offset), end_ms in zip(self.clocks, ends, strict=True)
            if Span(span.from_ms, end_ms).meets(from_ms, until_ms)
        ]


class Load:
    """The program that schedules."""

    def __init__(
        self,
        path: Path,
        queue: str,
        environment: Mapping[str, str],
        per_second: float,
        first: int,
        root: Path,
        how: str,
    ) -> None:
        self.path = path
        self.queue = queue
        self._lines = Lines(path)
        self._log = path.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.load",
                    queue,
                    str(path),
                    str(per_second),
                    str(first),
                    how,
                ],
                cwd=root,
                env={
                    **os.environ,
                    **environment,
                    "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
                    "PYTHONPATH": str(root),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def told(self, step: str | None = None) -> list[dict[str, Any]]:
        return self._lines.all(step)

    def pause_eater(self, is_to_go_on: bool = True) -> None:
        """Have it pause the task that eats memory again and again, until it is called once more with False."""
        switch = Path(f"{self.path}.pause")
        switch.touch() if is_to_go_on else switch.unlink()

    def schedule_eater(self) -> str:
        """Have it schedule the job that eats memory; return the id of that."""
        Path(f"{self.path}.eat").touch()
        (told,) = wait_until(lambda: self.told("eater"), description="it is scheduled")
        job: str = told["job"]
        return job

    def wait_for_more(self, jobs: int = 50, step: str = "stored") -> None:
        """Wait until so many more jobs were stored, or were something else."""
        least = len(self.told(step)) + jobs
        wait_until(
            lambda: len(self.told(step)) >= least or self._process.poll() is not None,
            description=f"{jobs} more jobs are {step}; {self._log.read_text()}",
            timeout=SETTLE_S,
        )
        assert self._process.poll() is None, self._log.read_text()

    def stop(self) -> None:
        """Have it end after the job at hand; wait for that."""
        Path(f"{self.path}.stop").touch()
        assert self._process.wait(SETTLE_S) == 0, self._log.read_text()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def kept(told: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the stored jobs by id, without those that were cancelled or may have been."""
    gone = {each["job"] for each in told if each["step"].startswith("cancelled")}
    return {
        each["job"]: each
        for each in told
        if each["step"] == "stored" and each["job"] not in gone
    }


def waiting(client: redis.Redis, queue: str) -> int:
    """Return how many jobs of a load wait, run, or are to run again."""
    total = 0
    for key in (
        f"redisson_delay_queue_timeout:{{{queue}}}",
        *(
            f"delayq_{what}:{{{queue}}}"
            for what in ("leases", "retries", "returned", "held")
        ),
    ):
        total += client.zcard(key)  # type: ignore[operator]
    return total
