"""The benchmarks run as contributing.md says: one after the other, each on a server of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_all_benchmarks_run_one_after_the_other() -> None:
    small = ["--rounds", "1", "--seconds", "1", "--pending", "2000"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *small],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    for heading in ("# latency", "# rates", "# flat"):
        assert heading in done.stdout.splitlines()
    assert "worker, 20,000 due no-ops, with Redisson's list" in done.stdout
    assert "longest call, the calls above" in done.stdout
