"""``python -m benchmarks.client REVISION``: how many machine instructions does a job cost the process that schedules it,
and the one that runs it, now and at an earlier commit?

The process runs in valgrind, which counts them from when it is warm. Other load on the machine hardly changes the count:
it changes how many jobs a worker claims at a time. `benchmarks.instructions` counts the server's.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks import bench, compare
from benchmarks.instructions import dump
from tests.servers import available_kinds

#: Jobs before the count begins, and jobs that are counted.
WARM, JOBS = 200, 2_000
#: Number of counts for each operation. The smallest count is the result.
TRIES = {"schedule()": 2, "a claimed job": 3}


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
    from benchmarks import tasks
    from django_delayq import schedule_many

    with tempfile.TemporaryDirectory() as folder:
        out = f"--callgrind-out-file={folder}/count"
        process = subprocess.Popen(
            [
                *("valgrind", "-q", "--tool=callgrind", out),
                *(sys.executable, "-m", "benchmarks.client", what),
            ],
            cwd=root,
            env={**bench.environment(root), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        counts = []
        for jobs in (WARM, JOBS):
            if what != "schedule()":
                schedule_many(tasks.noop_flat.prepare(0, n) for n in range(jobs))
            process.stdin.write(f"{jobs}\n")
            process.stdin.flush()
            # The log of a worker comes here as well.
            while process.stdout.readline() != "done\n":
                assert process.poll() is None
            counts.append(dump(process.pid, Path(folder)))
        process.communicate()
    return counts[-1] / JOBS


def act(what: str) -> None:
    """Do what is counted, in a process of its own, as often as its input says."""
    import django

    django.setup()
    from benchmarks import tasks
    from django_delayq.conf import get_settings
    from django_delayq.worker import process

    settings, handed = get_settings(), {}
    # Earlier commits have no such module.
    if find_spec("django_delayq.slices"):
        slices = import_module("django_delayq.slices")
        handed = {"parts": slices.loaded("part"), "reports": slices.loaded("report")}
    for line in sys.stdin:
        if what == "schedule()":
            for number in range(int(line)):
                tasks.noop_flat.schedule(3_600, number)
        else:
            worker = process.WorkerProcess(
                # Earlier commits have it there as well.
                process.WorkerOptions(
                    queues=[(settings.queue("flat"), 1.0)],
                    is_weighted=False,
                    worker=settings.worker,
                    is_burst=True,
                    **handed,
                ),
                owner=os.urandom(8),
            )
            worker.run()
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TRIES:
        act(sys.argv[1])
    else:
        main()
