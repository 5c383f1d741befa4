"""A run: passes over the systems, each with its tests, and the file that the figures go to."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.environments import ROOT, EnvironmentUnavailable
from benchmarks.peers.measurements import Measurements, Options, Row
from benchmarks.peers.server import MeasuredServer
from benchmarks.peers.subject import Subject, SubjectError
from benchmarks.peers.systems import SYSTEMS


def expected_s(test: str, options: Options) -> float:
    """Return about how many seconds a test of one system takes on two quiet processors."""
    layouts = len(options.layouts)
    return {
        "offers": 5,
        "bulk": 3,
        "drain": 16,
        "burst": 12 * layouts,
        "lateness": (16 + 2 * options.seconds) * layouts,
        "stress": 20 * layouts,
        "memory": 26,
        "growth": 20 * len(options.pending),
        "crash": 30,
    }[test]


class Results:
    """The results file: JSON, an object a line, appended to and flushed with each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: Row) -> None:
        """Append a row, with the time."""
        print(
            json.dumps({**_rounded(row), "at": round(time.time(), 1)}),
            file=self._file,
            flush=True,
        )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


class Progress:
    """Tells on stderr how far a run is, and about how long it takes."""

    def __init__(self, times: int, tests: Sequence[str], options: Options) -> None:
        """``times``: how often the tests run, over all systems and passes."""
        self._options = options
        self._total_s = times * sum(expected_s(test, options) for test in tests)
        self._done_s = 0.0
        self._begun = time.monotonic()
        self.tell(f"about {self._total_s / 60:.0f} minutes")

    def advance(self, test: str) -> None:
        """Count a test as done."""
        self._done_s += expected_s(test, self._options)

    def tell(self, what: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        share = self._done_s / self._total_s
        print(
            f"{minutes:3d}:{seconds:02d} {share:4.0%}  {what}",
            file=sys.stderr,
            flush=True,
        )


def main(
    names: Sequence[str],
    tests: Sequence[str],
    options: Options,
    *,
    kind: str,
    passes: int,
    out: Path,
    note: str,
    makes_only: bool,
) -> None:
    """Make the environments, and measure all systems that have one."""
    names = make(names)
    if makes_only or not names:
        return
    # Whoever ends us ends the workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with out.open("a") as file, MeasuredServer(kind) as server:
        results = Results(file)
        results.write(
            {
                "test": "machine",
                **machine(),
                "server": f"{kind} {server.version}",
                "note": note,
            }
        )
        results.write(
            {
                "test": "options",
                "tests": list(tests),
                "passes": passes,
                **asdict(options),
            }
        )
        measure(names, tests, options, server, results, passes)
    print(f"results in {out}", file=sys.stderr)


def make(names: Sequence[str]) -> list[str]:
    """Make the systems' environments; return the systems that have one."""
    made = []
    for name in names:
        environment = SYSTEMS[name].environment
        if not environment.is_made:
            print(f"making the environment of {name} …", file=sys.stderr, flush=True)
        try:
            environment.make()
        except EnvironmentUnavailable as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            made.append(name)
    return made


def measure(
    names: Sequence[str],
    tests: Sequence[str],
    options: Options,
    server: MeasuredServer,
    results: Results,
    passes: int,
) -> None:
    """Measure systems in passes over all of them: what the machine does meanwhile is spread over everybody."""
    progress = Progress(len(names) * passes, tests, options)
    folder = Path(tempfile.mkdtemp(prefix="dq-peers-"))
    has_failed = False

    def write(row: Row) -> None:
        nonlocal has_failed
        has_failed = has_failed or "error" in row
        results.write(row)
        progress.tell("  " + " ".join(_shown(key, value) for key, value in row.items()))

    for number in range(passes):
        for name in names:
            try:
                subject = Subject(name, SYSTEMS[name], server, folder)
            except SubjectError as error:
                write({"test": "system", "system": name, "error": str(error)})
                continue
            results.write({"test": "system", "system": name, **subject.description})
            labels = {"system": name, "pass": number}
            measurements = Measurements(subject, server, options, write, labels)
            for test in tests:
                progress.tell(f"{name}: {test}")
                begun = time.monotonic()
                measurements.run(test)
                progress.advance(test)
                took_s = time.monotonic() - begun
                results.write(
                    {
                        "test": "took",
                        "of": test,
                        **labels,
                        "seconds": took_s,
                        "spin_ms": spin_ms(),
                    }
                )
    if has_failed:
        print(f"something failed: the logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)


def _shown(key: str, value: Any) -> str:
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


def machine() -> Row:
    """Return what is measured on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (
            line.partition(":")[2].strip()
            for line in info
            if line.startswith("model name")
        ),
        "",
    )
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "processors": os.cpu_count(),
        "model": model or platform.machine(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "python": platform.python_version(),
        "revision": revision.stdout.strip(),
    }


def spin_ms() -> float:
    """Return how long a fixed piece of work takes, the best of three: what the machine does beside ours shows in it."""
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        total = 0
        for i in range(500_000):
            total += i & 3
        best = min(best, time.perf_counter() - begun)
    return best * 1000
