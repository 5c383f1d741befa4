"""``python -m benchmarks.client REVISION``: how many machine instructions does a job cost the process that schedules it,
and the one that runs it, now and at an earlier commit?

The process runs in valgrind, which counts them. A long run minus a short one leaves out how it starts. Other load on the
machine hardly changes the count: it changes how many jobs a worker claims at a time. `benchmarks.instructions` counts
the server's.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bench, compare
from tests.servers import available_kinds

#: Jobs of the short and of the long run.
SHORT, LONG = 200, 1_200
#: What is counted, and how often; the least of the counts is the best one.
TRIES = {"schedule()": 1, "a claimed job": 3}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client", description=__doc__
    )
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        parser.error("no valgrind on this machine (Debian's package has that name)")
    rows = []
    with tempfile.TemporaryDirectory() as folder, bench.serving(options.server):
        earlier = compare.check_out(options.revision, Path(folder) / "earlier")
        for what, tries in TRIES.items():
            counts: dict[Path, list[float]] = {earlier: [], bench.ROOT: []}
            for _ in range(tries):
                for root, found in counts.items():
                    found.append(measure(root, what))
            there, here = map(min, counts.values())
            rows.append((what, f"{there:,.0f}", f"{here:,.0f}", f"{here / there:.3f}"))
    print("instructions of the client for each job\n")
    bench.table(("what", options.revision, "here", "ratio"), rows)


def measure(root: Path, what: str) -> float:
    """Return how many instructions the code of a checkout needs for each job."""
    short, long = (_count(root, what, jobs) for jobs in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def _count(root: Path, what: str, jobs: int) -> int:
    from benchmarks import tasks
    from django_delayq import schedule_many

    if what != "schedule()":
        schedule_many(tasks.noop_flat.prepare(0, number) for number in range(jobs))
    with tempfile.NamedTemporaryFile() as counts:
        counting = (
            "valgrind -q --tool=callgrind --callgrind-out-file=" + counts.name
        ).split()
        program = [sys.executable, "-m", "benchmarks.client", what, str(jobs)]
        subprocess.run(
            [*counting, *program],
            cwd=root,
            env={**bench.environment(root), "PYTHONHASHSEED": "0"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (total,) = re.findall(r"^totals: (\d+)", Path(counts.name).read_text(), re.M)
    return int(total)


def act(what: str, jobs: int) -> None:
    """Do what is counted, in a process of its own."""
    import django

    django.setup()
    from benchmarks import tasks
    from django_delayq.conf import get_settings
    from django_delayq.worker.process import WorkerOptions, WorkerProcess

    settings = get_settings()
    if what == "schedule()":
        for number in range(jobs):
            tasks.noop_flat.schedule(3_600, number)
        return
    process = WorkerProcess(
        WorkerOptions(
            queues=[(settings.queue("flat"), 1.0)],
            is_weighted=False,
            worker=settings.worker,
            is_burst=True,
        ),
        owner=os.urandom(8),
    )
    process.run()


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TRIES:
        act(sys.argv[1], int(sys.argv[2]))
    else:
        main()
