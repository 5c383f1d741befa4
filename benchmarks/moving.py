"""``python -m benchmarks.moving``: how fast do pending jobs move from server to server, and for how long is a server held?

`manage.py delayq_import` moves a queue of a million, without Redisson's list, between two servers on this machine. Each
script holds its server while it runs; what the servers measured of that is what other calls have waited for.
"""

import argparse
import random
import time
from string import ascii_letters

import redis
from django.conf import settings
from django.core.management import call_command

from benchmarks import bench

#: A payload of 300 bytes, with what we add.
ARGUMENT = "".join(random.Random(1).choices(ascii_letters, k=150))
QUEUE = "flat"
#: Jobs of one call.
PART = 20_000
#: Percentiles of the time that a script takes, and the longest.
SHARES = ("50", "99", "100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey", help="the kind of both servers")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    with bench.serving(options.server) as source, bench.running(options.server) as to:
        from benchmarks import tasks
        from django_delayq import schedule_many
        from django_delayq.conf import forget_connections

        task = tasks.noop.using(queue=QUEUE)
        payload = len(task.prepare(0, ARGUMENT).draft.new.payload)
        for first in range(0, options.jobs, PART):
            numbers = range(first, min(first + PART, options.jobs))
            schedule_many(task.prepare(3600 + i % 1000, ARGUMENT) for i in numbers)
        clients = {"the old one": source.client(), "the new one": to.client()}
        for client in clients.values():
            client.config_set("latency-tracking-info-percentiles", " ".join(SHARES))
            client.config_resetstat()

        settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": to.url}
        forget_connections(setting="DELAYQ")
        began = time.monotonic()
        call_command("delayq_import", "--from", source.url, "--queue", QUEUE)
        took_s = time.monotonic() - began

        print(
            f"{options.jobs:,} jobs with a payload of {payload} bytes in {took_s:.0f} s,"
            f" {options.jobs / took_s:,.0f} a second\n"
        )
        bench.table(
            ("ms that a script holds", *(f"p{share}" for share in SHARES)),
            [(what, *_held_ms(client)) for what, client in clients.items()],
        )


def _held_ms(client: "redis.Redis[bytes]") -> list[str]:
    found = client.info("latencystats")["latency_percentiles_usec_evalsha"]
    return [f"{float(found[f'p{share}']) / 1000:.1f}" for share in SHARES]


if __name__ == "__main__":
    main()
