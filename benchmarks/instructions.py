"""``python -m benchmarks.instructions REVISION``: how many machine instructions does a job cost the server, now and at an
earlier commit?

The server runs in valgrind, which counts them. Other load on the machine does not change the count: two runs of the same
code differ by a hundredth at most. What Python and the network cost is not in it; `benchmarks.compare` has both.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import bench, compare
from tests.servers import Server, available_kinds

#: Jobs of each figure; jobs of a call of `schedule_many`, and of a claim.
JOBS = 2_000
BATCH = 100
CLAIMED = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions", description=__doc__
    )
    parser.add_argument("revision", help="the commit to compare with, or 'measure'")
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        parser.error("no valgrind on this machine (Debian's package has that name)")
    if options.revision == "measure":
        print(json.dumps(measure(options.server)))
        return
    with tempfile.TemporaryDirectory() as folder:
        earlier = compare.check_out(options.revision, Path(folder) / "earlier")
        there, here = (
            _measured(root, options.server) for root in (earlier, bench.ROOT)
        )
    rows = [
        (name, f"{there[name]:,.0f}", f"{here[name]:,.0f}", _ratio(here, there, name))
        for name in here
        if name in there
    ]
    print(f"{options.server}, instructions of the server for each job\n")
    bench.table(("what", options.revision, "here", "ratio"), rows)


def _ratio(here: dict[str, float], there: dict[str, float], name: str) -> str:
    return f"{here[name] / there[name]:.3f}"


def _measured(root: Path, kind: str) -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.instructions", "measure", "--server", kind],
        cwd=root,
        env=bench.environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise SystemExit(f"{root}: {told.stdout}{told.stderr}")
    figures: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
    return figures


def measure(kind: str) -> dict[str, float]:
    """Count, on a server of its own, what each kind of call costs a job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Server(kind)
        wrapper = folder / "server"
        counting = (
            f"exec valgrind -q --tool=callgrind --callgrind-out-file={folder}/count"
        )
        wrapper.write_text(
            f'#!/bin/sh\n{counting} {shlex.quote(str(server.binary))} "$@"\n'
        )
        wrapper.chmod(0o755)
        server.binary = wrapper
        server.start()
        try:
            os.environ["DELAYQ_BENCH_URL"] = server.url
            os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
            import django

            django.setup()
            return _count(server, folder)
        finally:
            server.stop()


def _count(server: Server, folder: Path) -> dict[str, float]:
    from benchmarks import tasks
    from django_delayq import schedule_many

    claim_calls = bench.module("core.claim", "delivery.claiming")
    lease_ends = bench.module("core.lease_ends", "delivery.settling")
    queue_keys = bench.module("core.keys", "delivery.keys").DeliveryKeys
    run = bench.module("transport.run", "calls.running").run
    client = server.client()
    pid = client.info("server")["process_id"]
    lease: dict[str, Any] = {"owner": b"owner...", "lease_ms": 30_000}

    def counted(do: Callable[[], None]) -> float:
        dump(pid, folder)
        do()
        return dump(pid, folder) / JOBS

    def claim(keys: Any, limit: int) -> int:
        request = os.urandom(8)
        # A job starts with the next millisecond; a claim that comes before would be one more.
        time.sleep(0.002)
        few = claim_calls.claim_few(keys, request=request, limit=limit, **lease)
        claimed = run(client, few) if limit < CLAIMED else None
        if claimed is None:
            call = claim_calls.claim(keys, request=request, limit=limit, **lease)
            claimed = run(client, call)
        if claimed.jobs:
            done = [lease_ends.Done(job.token, request) for job in claimed.jobs]
            run(client, lease_ends.acknowledge(keys, done))
        return len(claimed.jobs)

    def drain(keys: Any) -> None:
        while claim(keys, CLAIMED):
            pass

    def one_by_one(keys: Any, task: Any) -> None:
        for number in range(JOBS):
            task.schedule(0, number)
            assert claim(keys, 4) == 1

    figures: dict[str, float] = {}
    for task, how in ((tasks.noop, "list"), (tasks.noop_flat, "no list")):
        keys = queue_keys.of(task.options.queue)
        # The first calls load scripts, and grow what the queue is kept in.
        task.schedule(0, 0)
        drain(keys)

        def schedule_one_by_one(task: Any = task) -> None:
            for number in range(JOBS):
                task.schedule(0, number)

        def schedule_in_batches(task: Any = task) -> None:
            for first in range(0, JOBS, BATCH):
                schedule_many(
                    task.prepare(0, number) for number in range(first, first + BATCH)
                )

        figures[f"schedule(), {how}"] = counted(schedule_one_by_one)
        drain(keys)
        figures[f"schedule_many(), {how}"] = counted(schedule_in_batches)
        figures[f"claim and acknowledge {CLAIMED}, {how}"] = counted(
            lambda keys=keys: drain(keys)
        )
        figures[f"schedule, claim, acknowledge, {how}"] = counted(
            lambda keys=keys, task=task: one_by_one(keys, task)
        )
    return figures


def dump(pid: int, folder: Path) -> int:
    """Return how many instructions were executed since the last call."""
    before = set(folder.glob("count.*"))
    subprocess.run(
        ["callgrind_control", "--dump", str(pid)], check=True, capture_output=True
    )
    (new,) = set(folder.glob("count.*")) - before
    totals = re.findall(r"^totals: (\d+)", new.read_text(), re.MULTILINE)
    return int(totals[-1])


if __name__ == "__main__":
    main()
