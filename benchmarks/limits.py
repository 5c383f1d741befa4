"""``python -m benchmarks.limits``: what do limits cost a drain, and how exact is a rate?

The cost is that of a drain of no-ops with 1,000 keys and a limit of one job for each, beside the same drain without, in
turns. The rate is that of a queue with 500/s for 20 s after its burst, with one worker and with two.
"""

import argparse
import contextlib
import statistics
import time
from typing import Any

import redis

from benchmarks import bench, rates

#: Bars: the rate of a drain with limits over that without; how far off a rate may be.
SHARE = 0.4
EXACT = 0.02
PER_SECOND = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="a kind of server")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        client = server.client()
        _drain(client, options.rounds)
        for workers in (1, 2):
            _pace(client, workers, options.seconds)


def _drain(client: redis.Redis, rounds: int) -> None:
    from benchmarks import tasks

    queue = tasks.noop_flat.options.queue
    plain: list[float] = []
    keyed: list[float] = []
    ways: list[tuple[list[float], Any]] = [
        (plain, tasks.noop_flat),
        (keyed, tasks.noop_of_a_key),
    ]
    for number in range(rounds):
        for found, task in ways if number % 2 else reversed(ways):
            found.append(rates.drain(client, task))
            bench.delete_queue(client, queue)
    ratios = [one / other for one, other in zip(keyed, plain, strict=True)]
    rows = [
        ("without limits", bench.spread(plain), ""),
        (
            "1,000 keys, one job each at a time",
            bench.spread(keyed),
            f"{statistics.median(ratios):.2f}",
        ),
    ]
    bench.table(("20,000 due", "jobs/s", f"ratio (bar: {SHARE:g})"), rows)


def _pace(client: redis.Redis, workers: int, seconds: float) -> None:
    """Print how many jobs start in so many seconds after the burst, and what claims that took."""
    from benchmarks import tasks
    from django_delayq import schedule_many, set_limit
    from django_delayq.core import states
    from django_delayq.core.keys import DeliveryKeys

    task = tasks.noop_flat
    queue = task.options.queue
    keys = DeliveryKeys.of(queue)
    set_limit(queue, rate=f"{PER_SECOND}/s")
    jobs = int(PER_SECOND * (seconds + 15))
    schedule_many(task.prepare(0, i) for i in range(jobs))

    def done() -> int:
        return int(client.hget(keys.counters, states.State.SUCCEEDED) or 0)

    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(
                bench.working("--queue", queue, "--processes", "1", "--verbosity", "0")
            )
        # The burst, and the first look of each process.
        while done() < 4 * PER_SECOND:
            time.sleep(0.001)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        began, first = time.perf_counter(), done()
        time.sleep(seconds)
        took, count = time.perf_counter() - began, done() - first
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
    rate = count / took
    print(
        f"{PER_SECOND}/s, {workers} worker{'s' * (workers > 1)}: {rate:.1f} jobs a second over {took:.1f} s,"
        f" {rate / PER_SECOND - 1:+.2%} (bar: ±{EXACT:.0%}); {calls / took:.0f} calls of scripts a second"
    )
    bench.delete_queue(client, queue)


if __name__ == "__main__":
    main()
