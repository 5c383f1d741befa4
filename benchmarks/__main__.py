"""``python -m benchmarks NAME``: one script a question; benchmarks/README.md says which."""

import argparse
import subprocess
import sys

from benchmarks import flat, latency, rates
from tests.servers import available_kinds

#: In the order of `all`. Each gets a process of its own: Django reads its settings, and with them the address of a
#: script's server, once.
NAMES = ("latency", "rates", "flat")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", default="all", choices=("all", *NAMES))
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of each rate; the median counts"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=20,
        help="how long jobs are scheduled for latency",
    )
    parser.add_argument(
        "--pending",
        type=int,
        default=flat.MANY,
        help="jobs that are pending while flat measures",
    )
    options = parser.parse_args()
    if options.name == "all":
        arguments = sys.argv[1:]
        if "all" in arguments:
            arguments.remove("all")
        for name in NAMES:
            print(f"\n# {name}\n", flush=True)
            subprocess.run(
                [sys.executable, "-m", "benchmarks", name, *arguments], check=True
            )
    elif options.name == "latency":
        latency.main(options.server, options.seconds)
    elif options.name == "rates":
        rates.main(options.server, options.rounds)
    else:
        flat.main(options.server, options.pending)


if __name__ == "__main__":
    main()
