"""One system under measurement: its adapter, its producer, its workers and the file that its jobs write."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import records
from benchmarks.peers.environments import ROOT
from benchmarks.peers.processes import Workers
from benchmarks.peers.server import MeasuredServer
from benchmarks.peers.systems import System

#: Between two looks at the record file.
POLL_S = 0.005
ADAPTER_TIMEOUT_S = 60
READY_TIMEOUT_S = 90
#: For sibling processes and schedulers, once a first job has run.
SETTLE_S = 1.0


class SubjectError(Exception):
    """Raised when an adapter or its producer failed; says how, or where its log is."""


class Subject:
    """A system, driven by the protocol of README.md."""

    def __init__(
        self, name: str, system: System, server: MeasuredServer, folder: Path
    ) -> None:
        self.name = name
        self._server = server
        self._command = system.environment.adapter(system.adapter)
        # What we are run with is not for them, least of all our PYTHONPATH.
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYTHON", "DJANGO_"))
        }
        self._records = folder / f"{name}.records"
        self._environment = {
            **kept,
            **system.environment.variables,
            **system.variables,
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": server.url,
            "BENCH_HOST": "127.0.0.1",
            "BENCH_PORT": str(server.port),
            "BENCH_RECORDS": str(self._records),
        }
        self.log = folder / f"{name}.log"
        self._producer: subprocess.Popen[str] | None = None
        self.workers: Workers | None = None
        self._probes = 0
        self.description: dict[str, Any] = json.loads(self._call("describe"))

    def reset(self, crash: str = "default") -> None:
        """Begin anew: an empty server, an empty record file, a new producer."""
        self.stop()
        self._server.flush()
        self._environment["BENCH_CRASH"] = crash
        self._records.write_bytes(b"")
        self._probes = 0
        with self.log.open("ab") as log:
            self._producer = subprocess.Popen(
                [*self._command, "produce"],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        self._reply()

    def stop(self) -> None:
        """End all of its processes."""
        self.kill_workers()
        if self._producer is not None:
            self._producer.kill()
            self._producer.communicate()
            self._producer = None

    def kill_workers(self) -> None:
        """End its workers by SIGKILL, every process of them."""
        if self.workers is not None:
            self.workers.kill()
            self.workers = None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Have the producer do something, and return its reply.

        Raises:
            SubjectError: it failed, or is gone.
        """
        assert self._producer is not None
        assert self._producer.stdin is not None
        try:
            print(
                json.dumps({"op": op, **arguments}),
                file=self._producer.stdin,
                flush=True,
            )
        except BrokenPipeError:
            raise SubjectError(f"the producer died: {self._end_of_log()}") from None
        return self._reply()

    def enqueue(
        self, n: int, due: dict[str, Any], mode: str = "single", **arguments: Any
    ) -> dict[str, Any]:
        """Enqueue ``n`` jobs; return the reply with when that began and ended, t0 and t1."""
        return self.ask("enqueue", n=n, due=due, mode=mode, **arguments)

    @property
    def fastest(self) -> str:
        """The mode that fills a queue soonest."""
        return "bulk" if self.description["bulk"] else "single"

    def start(self, layout: str, queues: int = 1) -> Workers:
        """Start the workers of a layout."""
        described = json.loads(self._call("workers", layout, str(queues)))
        self.workers = Workers(described, self._environment, ROOT, self.log)
        return self.workers

    def wait_ready(self, queues: int = 1, settle_s: float = SETTLE_S) -> None:
        """Return once an immediate job of each queue has run.

        Raises:
            SubjectError: it did not.
        """
        for queue in range(queues):
            self.probe(queue)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while records.count(self._records) < self._probes:
            if time.monotonic() > deadline:
                raise SubjectError(
                    f"no job ran within {READY_TIMEOUT_S} s: {self._end_of_log()}"
                )
            time.sleep(POLL_S)
        time.sleep(settle_s)

    def probe(self, queue: int = 0) -> None:
        """Enqueue a job that no figure counts."""
        self.enqueue(1, {"kind": "now"}, start=records.PROBE, queue=queue)
        self._probes += 1

    def wait(self, n: int, deadline: float, *, idle_s: float | None = None) -> None:
        """Return once there are ``n`` records beside the probes', at the deadline, or after so long without another.

        ``deadline`` is in epoch seconds.
        """
        last, since = -1, time.time()
        while True:
            seen = records.count(self._records) - self._probes
            now = time.time()
            if seen >= n or now > deadline:
                return
            if seen != last:
                last, since = seen, now
            elif idle_s is not None and now - since > idle_s:
                return
            time.sleep(POLL_S)

    def records(self) -> list[records.Record]:
        """Return what its jobs have written so far."""
        return list(records.read(self._records))

    def _call(self, *arguments: str) -> bytes:
        with self.log.open("ab") as log:
            done = subprocess.run(
                [*self._command, *arguments],
                env=self._environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=ADAPTER_TIMEOUT_S,
            )
        if done.returncode:
            raise SubjectError(f"{arguments[0]} failed: {self._end_of_log()}")
        return done.stdout

    def _reply(self) -> dict[str, Any]:
        assert self._producer is not None
        assert self._producer.stdout is not None
        line = self._producer.stdout.readline()
        if not line:
            raise SubjectError(f"the producer died: {self._end_of_log()}")
        reply: dict[str, Any] = json.loads(line)
        if reply.get("ok") is False:
            raise SubjectError(reply["error"])
        return reply

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"
