"""``python -m benchmarks.failover``: the primary of three Sentinels fails: how soon does each kind of connection work again?

Each kind is in use all the time, in a thread of its own. The time counts from the moment when the first Sentinel names
another primary. The primary is killed, or suspended, which closes no connection; by turns, ``--rounds`` times each.

The Sentinels take a primary for dead after half a second. By default that takes them 30 seconds, before the time that
counts here.

In the last two columns no thread of the process can listen to the Sentinels.
"""

import argparse
import time

from benchmarks import bench
from tests.failovers import InUse
from tests.sentinels import Watched
from tests.servers import available_kinds

WAYS = ("kill", "suspend")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = [(hears, how) for hears in (True, False) for how in WAYS]
    found: dict[tuple[bool, str], dict[str, list[float]]] = {case: {} for case in cases}
    with Watched(options.server) as watched:
        for hears in (True, False):
            with InUse(watched, hears=hears) as in_use:
                for _ in range(options.rounds):
                    for how in WAYS:
                        _measure(watched, in_use, how, found[hears, how])
    rows = [
        (
            name,
            *(
                bench.spread(found[case][name]) if name in found[case] else "–"
                for case in cases
            ),
        )
        for name in found[cases[0]]
    ]
    titles = [
        f"{how}, {'a thread listens' if hears else 'no thread listens'}"
        for hears, how in cases
    ]
    bench.table(("ms from the switch to the first success", *titles), rows)


def _measure(
    watched: Watched, in_use: InUse, how: str, found: dict[str, list[float]]
) -> None:
    old = watched.primary
    getattr(old, how)()
    switched, port = watched.wait_for_switch(old)
    with in_use.fed(port):
        for name, took_s in in_use.wait_until_back(switched).items():
            found.setdefault(name, []).append(1000 * took_s)
    watched.heal()
    # Idle connections are back as well before the next failure.
    time.sleep(1)


if __name__ == "__main__":
    main()
