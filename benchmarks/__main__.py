"""``python -m benchmarks NAME``: one script a question; benchmarks/README.md says which."""

import argparse

from benchmarks import flat, latency, rates
from tests.servers import available_kinds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", default="all", choices=("all", "latency", "rates", "flat")
    )
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
    options = parser.parse_args()
    if options.name in ("all", "latency"):
        latency.main(options.server, options.seconds)
    if options.name in ("all", "rates"):
        rates.main(options.server, options.rounds)
    if options.name in ("all", "flat"):
        flat.main(options.server)


if __name__ == "__main__":
    main()
