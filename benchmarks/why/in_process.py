"""A delay queue inside a process: what is left of it after ``kill -9``.

``python -m benchmarks.why.in_process [jobs]``

A process puts jobs due in two seconds into a timer, and is killed after one. It is the timer of this package,
which keeps nothing in it but what may be lost with the process: time limits of running jobs.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

DELAY_S = 2.0


def serve(folder: Path, count: int) -> None:
    """Wait for the jobs in memory; each leaves a file when it runs."""
    from django_delayq.worker.time_limit import Timer

    timer = Timer("jobs")
    for i in range(count):
        timer.call_later(DELAY_S, (folder / str(i)).touch)
    (folder / "ready").touch()
    time.sleep(DELAY_S + 2)


def run(count: int, *, is_killed: bool) -> int:
    """Run the process, once or killed and started again; returns how many jobs ran."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "benchmarks.why.in_process",
            "serve",
            name,
            str(count),
        ]
        process = subprocess.Popen(command)
        while not (folder / "ready").exists():
            time.sleep(0.01)
        if is_killed:
            time.sleep(DELAY_S / 2)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            # The next process has to find what is left; nobody tells it about any job.
            process = subprocess.Popen([*command[:-1], "0"])
        process.wait()
        return len(list(folder.iterdir())) - 1


def main(count: int = 1_000) -> None:
    print(f"{count:,} jobs in a timer")
    print(f"  the process lives: {run(count, is_killed=False):,} ran")
    print(f"  killed halfway, started again: {run(count, is_killed=True):,} ran")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
