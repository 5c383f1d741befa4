"""``python -m benchmarks.enqueue``: what does a call of Django's tasks take through the backend, beside ``schedule()``?

The same function, as a task of Django's and as a delayed task, on one queue, in turns of some hundred calls; each call
waits for the server's reply. The bar is in the last line: calls a second of ``enqueue()`` over those of ``schedule()``.
"""

import argparse
import time
from collections.abc import Callable

from benchmarks import bench

#: Calls in one turn.
CALLS = 300
#: The bar: the rate of enqueue() over that of schedule().
SHARE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="a kind of server")
    parser.add_argument("--rounds", type=int, default=31, help="turns of each")
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        client = server.client()
        from benchmarks import django_tasks

        deferred = django_tasks.call.using(run_after=django_tasks.SOON)
        calls: dict[str, Callable[[int], object]] = {
            "schedule()": lambda n: django_tasks.scheduled.schedule(0, n),
            "enqueue()": django_tasks.call.enqueue,
            "schedule(), deferred": lambda n: django_tasks.scheduled.schedule(
                django_tasks.SOON, n
            ),
            "enqueue(), deferred": deferred.enqueue,
        }
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(options.rounds + 1):
            names = sorted(calls, reverse=number % 2 == 0)
            for name in names:
                rate = _rate(calls[name])
                if number:
                    # The first turn loads the scripts, and is not counted.
                    rates[name].append(rate)
            client.flushall()
        bench.table(
            ("", "calls/s, median (least – most)"),
            [(name, bench.spread(found)) for name, found in rates.items()],
        )
        names = list(calls)
        for ours, name in zip(names[::2], names[1::2], strict=True):
            pairs = zip(rates[ours], rates[name], strict=True)
            shares = [one / other for other, one in pairs]
            print(f"{name} to {ours} (bar: {SHARE}): {bench.spread(shares, '{:.3f}')}")


def _rate(call: Callable[[int], object]) -> float:
    begun = time.perf_counter()
    for n in range(CALLS):
        call(n)
    return CALLS / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
