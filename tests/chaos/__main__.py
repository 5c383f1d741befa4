"""Faults on real servers and workers under load: what is lost, early or doubled, and what shows that the fault happened.

Each fault has a server, a worker and a load of its own. What was stored, and what ran when, stands in files outside the
server; the judgement comes from them alone.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, Verdict
from tests.chaos.faults import FAULTS, Fault, NotHere
from tests.servers import KINDS, Server


def face(
    fault: Fault, kind: str, directory: Path, *, per_second: float
) -> tuple[Arena, Verdict]:
    """Run one scenario to its end, and judge it.

    Raises:
        NotHere: this machine cannot make the fault.
        AssertionError: something else than the verdict is wrong.
    """
    prepared = {} if fault.prepare is None else fault.prepare(directory)
    server = Server(kind, fault.options, environment=prepared.get("environment"))
    if "wrapper" in prepared:
        server.wrap(prepared["wrapper"])
    arena = Arena(directory, server, per_second, clock=prepared.get("clock"))
    try:
        server.start()
        arena.start_worker()
        arena.start_load()
        fault.happen(arena)
        return arena, arena.finish()
    finally:
        arena.close()
        server.stop()


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
    parser.add_argument("--rate", type=float, default=200, help="jobs a second")
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
