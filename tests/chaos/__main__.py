"""Faults on real servers and workers under load: what is lost, early or doubled, and what shows that the fault happened.

Each fault has servers, workers and loads of its own. What was stored, and what ran when, stands in files outside the
server; the judgement comes from them alone.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.chaos import (  # noqa: F401 - each adds its faults to FAULTS
    faults,
    on_cluster,
    on_sentinels,
)
from tests.chaos.arena import Arena, Place, Verdict
from tests.chaos.fault import FAULTS, Fault, NotHere
from tests.servers import KINDS, Server


def face(
    fault: Fault, kind: str, directory: Path, *, per_second: float
) -> tuple[Arena, Verdict]:
    """Run one scenario to its end, and judge it.

    Raises:
        NotHere: this machine cannot make the fault.
        AssertionError: something else than the verdict is wrong.
    """
    place: Place
    if fault.layout is not None:
        place, queues = fault.layout(kind)
        arena = Arena(directory, place, per_second, queues, ticks=fault.ticks)
    else:
        prepared = {} if fault.prepare is None else fault.prepare(directory)
        place = Server(kind, fault.options, environment=prepared.get("environment"))
        if "wrapper" in prepared:
            place.wrap(prepared["wrapper"])
        arena = Arena(directory, place, per_second, clock=prepared.get("clock"))
    try:
        place.start()
        for queue in arena.queues:
            arena.start_load(queue=queue)
        arena.start_worker()
        for load in arena.loads:
            load.wait_for_more(1)
        fault.happen(arena)
        return arena, arena.finish()
    finally:
        arena.close()
        place.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "faults",
        nargs="*",
        metavar="FAULT",
        choices=[[], *FAULTS],
        help=f"all without any; {', '.join(FAULTS)}",
    )
    parser.add_argument("--server", choices=KINDS, default="valkey")
    parser.add_argument(
        "--rate", type=float, default=200, help="jobs a second in each queue"
    )
    parser.add_argument("--times", type=int, default=1, help="each fault so often")
    options = parser.parse_args()
    failed: list[str] = []
    for name in options.times * (options.faults or list(FAULTS)):
        fault = FAULTS[name]
        print(f"{name}: {fault.summary}", flush=True)
        directory = Path(tempfile.mkdtemp(prefix="dq-chaos-"))
        begun = time.monotonic()
        try:
            arena, verdict = face(
                fault, options.server, directory, per_second=options.rate
            )
        except (NotHere, pytest.skip.Exception) as error:
            print(f"  NOT TRIED: {error}", flush=True)
        except AssertionError as error:
            failed.append(name)
            print(f"  FAILED, see {directory}: {error}", flush=True)
            continue
        else:
            for line in arena.evidence:
                print(f"  {line}")
            word = "held" if verdict.is_clean else f"FAILED, see {directory}"
            print(
                f"  {word} in {time.monotonic() - begun:.0f} s: {verdict}", flush=True
            )
            if not verdict.is_clean:
                failed.append(name)
                continue
        shutil.rmtree(directory)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
