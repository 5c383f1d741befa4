"""``python -m benchmarks.ended``: what does it cost that a queue remembers its last ended jobs?

Drains of 60,000 no-ops in turns, with ``KEEP_ENDED`` 0 and 1,000: their rates, and the processor time of a job, worker
and server together, which a busy machine disturbs far less.
"""

import argparse
import os

import redis

from benchmarks import bench
from benchmarks.compare import DRAINED, drain, processor_s, without_jobs_s

#: The bar: the rate with the default over the rate without, and the processor time without over that with it.
SHARE = 0.98


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="a kind of server")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with bench.serving(options.server) as server:
        client = server.client()
        speed: dict[str, list[float]] = {"0": [], "1000": []}
        spent: dict[str, list[float]] = {"0": [], "1000": []}
        for number in range(options.rounds):
            for keep in sorted(speed, reverse=number % 2 == 0):
                # Only the worker, a process of its own, reads it.
                os.environ["DELAYQ_BENCH_KEEP_ENDED"] = keep
                jobs_a_second, us_a_job = _drain(client)
                speed[keep].append(jobs_a_second)
                spent[keep].append(us_a_job)
        bench.table(
            ("KEEP_ENDED", "jobs/s, median (least – most)", "processor µs a job"),
            [
                (keep, bench.spread(speed[keep]), bench.spread(spent[keep], "{:.1f}"))
                for keep in speed
            ],
        )
        rate = [on / off for off, on in zip(*speed.values(), strict=True)]
        time = [off / on for off, on in zip(*spent.values(), strict=True)]
        form = "{:.3f}"
        print(
            f"With 1,000 to without (bar: {SHARE}): rates {bench.spread(rate, form)},"
            f" jobs for the same processor time {bench.spread(time, form)}"
        )


def _drain(client: redis.Redis) -> tuple[float, float]:
    """Return jobs a second, and the processor time of each without what it takes to send it, µs."""
    from benchmarks import tasks

    before_s = processor_s(client)
    rate = drain(client, tasks.noop_flat)
    spent_s = processor_s(client) - before_s
    bench.delete_queue(client, tasks.noop_flat.options.queue)
    spent_s -= without_jobs_s(client, tasks.noop_flat)
    return rate, spent_s / DRAINED * 1e6


if __name__ == "__main__":
    main()
