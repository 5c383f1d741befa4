"""``python -m benchmarks.offers``: how fast is `schedule()` beside a bare `EVALSHA` of one `ZADD`, call by call?

The two, with Redisson's list and without it, take turns within every round, a few calls each, so that whatever slows
the machine slows all of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import redis

from benchmarks import bench

#: Calls of one kind in a row: some 20 ms.
TURN = 250
#: Turns of each kind in a round.
TURNS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", action="append", help="a kind of server; again for more of them"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    kinds = options.server or ["redis7", "valkey"]
    if len(kinds) == 1:
        measure(kinds[0], options.rounds)
        return
    bench.run_for_each("benchmarks.offers", kinds, "--rounds", str(options.rounds))


def measure(kind: str, rounds: int) -> None:
    """Print the rates on one server, and the ratios: medians over the rounds."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks

        sha = client.script_load(bench.BASELINE)
        calls: dict[str, Callable[[int], object]] = {
            "bare EVALSHA of one ZADD": lambda i: client.evalsha(
                sha, 1, "delayq_bench_baseline", i, f"member {i}"
            ),
            "schedule(), without Redisson's list": lambda i: tasks.noop_flat.schedule(
                3600, i
            ),
            "schedule(), with it": lambda i: tasks.noop.schedule(3600, i),
        }
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, rate in _round(calls).items():
                rates[name].append(rate)
            _clear(client)
        bare = next(iter(rates.values()))
        bench.table(
            ("what", "calls/s, median (least – most)", "µs a call", "× bare", "goal"),
            [
                (
                    name,
                    bench.spread(found),
                    f"{1e6 / statistics.median(found):.1f}",
                    bench.spread(
                        [one / base for one, base in zip(found, bare, strict=True)],
                        "{:.2f}",
                    ),
                    "" if found is bare else "0.85",
                )
                for name, found in rates.items()
            ],
        )


def _round(calls: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """Return calls a second of each, the time of all its turns together."""
    taken_s = dict.fromkeys(calls, 0.0)
    for turn in range(TURNS):
        for name, call in calls.items():
            first = turn * TURN
            start = time.perf_counter()
            for i in range(first, first + TURN):
                call(i)
            taken_s[name] += time.perf_counter() - start
    return {name: TURN * TURNS / seconds for name, seconds in taken_s.items()}


def _clear(client: redis.Redis) -> None:
    client.unlink("delayq_bench_baseline")
    for queue in ("default", "flat"):
        bench.delete_queue(client, queue)


if __name__ == "__main__":
    main()
