"""A soak of some seconds runs as one of an hour does, and ends with what it has when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
#: What holds on a machine that is as busy as it may be.
SURE = (
    "jobs lost",
    "jobs that began early",
    "starts of jobs that nobody has stored",
    "dead letters",
    "attempts, by our statistics",
    "exit status of the producer",
    "exit status of the worker",
)


def begin(output: Path, *more: str) -> "subprocess.Popen[str]":
    arguments = ["--every", "0.5", "--longest", "1"]
    arguments += ["--output", str(output), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.soak", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A terminal's Ctrl-C reaches a whole group.
        start_new_session=True,
    )


def report_of(output: Path, status: int, printed: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    findings = {finding["name"]: finding for finding in report["findings"]}
    for name in SURE:
        assert findings[name]["holds"] is True, printed
    assert status == any(each["holds"] is False for each in findings.values()), printed
    assert all(name in printed for name in findings)
    for theme in ("light", "dark"):
        svg = output.with_name(f"{output.name}-{theme}.svg").read_text()
        assert svg.startswith("<svg")
    return report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "servers"),
    [(("--queues", "2"), {"server"}), (("--shards", "2"), {"node 1", "node 2"})],
)
def test_soak_of_some_seconds(
    tmp_path: Path, layout: tuple[str, ...], servers: set[str]
) -> None:
    output = tmp_path / "pictures" / "soak"

    process = begin(output, "--seconds", "5", *layout)
    printed, progress = process.communicate()

    assert process.returncode in (0, 1), progress
    report = report_of(output, process.returncode, printed)
    assert not report["is_interrupted"]
    assert report["seconds"] >= 5
    assert f"half of the limit is {report['rate']:,.0f} jobs a second" in progress
    assert report["jobs"] > 0
    last = report["samples"][-1]
    assert {"delayq_workers", "delayq_claims", "delayq_result"} <= set(last["keys"])
    assert servers | {"producer", "supervisor"} < set(last["rss"])
    assert last["rss"].keys() == last["handles"].keys()
    assert sum(name.startswith("worker") for name in last["rss"]) == 2
    assert "of 5 s" in progress


@pytest.mark.slow
def test_interrupted_soak_has_a_verdict(tmp_path: Path) -> None:
    output = tmp_path / "soak"

    process = begin(output, "--rate", "50")
    assert process.stderr is not None
    begun = [process.stderr.readline() for _ in range(3)]
    assert all("of 3600 s" in line for line in begun), begun
    os.killpg(process.pid, signal.SIGINT)
    printed, progress = process.communicate()

    assert process.returncode in (0, 1), progress
    report = report_of(output, process.returncode, printed)
    assert report["is_interrupted"]
    assert len(report["samples"]) >= 3


@pytest.mark.slow
def test_soak_whose_worker_dies_has_a_verdict_that_fails(tmp_path: Path) -> None:
    output = tmp_path / "soak"

    process = begin(output, "--rate", "50")
    assert process.stderr is not None
    process.stderr.readline()
    os.kill(worker_of(process.pid), signal.SIGKILL)
    printed, progress = process.communicate()

    assert process.returncode == 1, progress
    findings = json.loads(output.with_suffix(".json").read_text())["findings"]
    assert "the worker has ended by itself" in [each["figure"] for each in findings]
    assert "NO" in printed


def worker_of(pid: int) -> int:
    """Return the worker's supervisor among the processes that a soak has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = (
        int(child)
        for child in children
        if b"delayq_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return found
