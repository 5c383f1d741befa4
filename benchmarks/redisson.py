"""``python -m benchmarks.redisson``: how late, and how fast, beside a real Redisson in the same run?

1. Three queues, 1,000 elements in each, due after 1 to 5 s at random; a side offers, transfers and consumes its own in
   one process. First the sides in turns, then both at once, which are six queues.
2. 20,000 elements of one start time lie due in a queue with its list; who holds the queue transfers them. In turns:
   Redisson, we with the same frames, and we with frames of our own. Java's frames are ordered by their random bytes.

Needs Java and Maven; Maven brings Redisson.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

import redis

from benchmarks.bench import delete_queue, slowest_us, spread, table
from benchmarks.transfer import fill_as_java, fill_as_we_do, scan_us
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.delayed_queue import DelayedQueue
from tests.interop.peers import Peer
from tests.interop.stress import JavaSide, Lateness, Load, PythonSide, run_stress
from tests.polling import wait_until
from tests.servers import Server, available_kinds

CODEC = "StringCodec"
#: A Java service that has run for a while: its compiler is done.
WARM_UP = Load(count=1_000, least_ms=100, most_ms=2_000)


def stress(peer: Peer, client: redis.Redis, url: str, rounds: int) -> None:
    in_turns: dict[str, list[Lateness]] = {"java": [], "ours": []}
    at_once: dict[str, list[Lateness]] = {"java": [], "ours": []}

    def load(number: str, labels: Sequence[str], load: Load) -> dict[str, Lateness]:
        names = {
            label: [f"stress-{number}-{label}-{n}" for n in range(3)]
            for label in labels
        }
        sides = {
            label: JavaSide(peer, names[label])
            if label == "java"
            else PythonSide(url, names[label])
            for label in labels
        }
        return run_stress(sides, names, client, load)

    load("warm-up", ["java", "ours"], WARM_UP)
    for number in range(rounds):
        for label in in_turns:
            in_turns[label].append(load(f"{number}-alone", [label], Load())[label])
        for label, lateness in load(f"{number}-at-once", [*at_once], Load()).items():
            at_once[label].append(lateness)
    for what, found in (("in turns", in_turns), ("at once", at_once)):
        print(f"3 × 1,000 elements at random 1 – 5 s, {what}\n")
        table(
            ("lateness, ms", "p50", "p99", "max", "min"),
            [
                (
                    f"Redisson {peer.version}" if side == "java" else "ours",
                    *(
                        spread(
                            [each.percentile(share) for each in found[side]], "{:.1f}"
                        )
                        for share in (0.5, 0.99, 1.0, 0.0)
                    ),
                )
                for side in found
            ],
        )
        for name, share, goal in (("p99", 0.99, 0.25), ("max", 1.0, 0.5)):
            ratios = [
                ours.percentile(share) / java.percentile(share)
                for ours, java in zip(found["ours"], found["java"], strict=True)
            ]
            print(
                f"{name}, ours / Redisson's: {spread(ratios, '{:.2f}')}; the goal is {goal}"
            )
        print()


def burst(peer: Peer, client: redis.Redis, count: int, rounds: int) -> None:
    name = "burst"
    keys = DeliveryKeys.of(name)

    def hold_java() -> Callable[[], object]:
        peer.call("hold", queue=name, codec=CODEC)
        return lambda: peer.call("destroy", queue=name)

    def hold_ours() -> Callable[[], object]:
        return DelayedQueue(name, connection=client).destroy

    ways = {
        f"Redisson {peer.version}": (fill_as_java, hold_java),
        "ours, Java's frames": (fill_as_java, hold_ours),
        "ours, our frames": (fill_as_we_do, hold_ours),
    }
    took_ms: dict[str, list[float]] = {way: [] for way in ways}
    slowest_ms: dict[str, list[float]] = {way: [] for way in ways}
    scans_ms = []
    for _ in range(rounds):
        for way, (fill, hold) in ways.items():
            delete_queue(client, name)
            fill(client, keys, [now_ms()] * count)
            scans_ms.append(scan_us(client, keys) / 1000)
            client.slowlog_reset()
            begun = time.perf_counter()
            release = hold()
            wait_until(
                lambda: not client.exists(keys.queue.timeout_set),
                description="all are transferred",
                timeout=60,
            )
            took_ms[way].append((time.perf_counter() - begun) * 1000)
            slowest_ms[way].append(slowest_us(client)[0] / 1000)
            release()
            assert client.llen(name) == count
            assert not client.exists(keys.queue.delay_queue)
            delete_queue(client, name)
    print(f"{count:,} elements due at one instant\n")
    table(
        ("", "ms to the last", "slowest script, ms"),
        [
            (way, spread(took_ms[way]), spread(slowest_ms[way], "{:.1f}"))
            for way in ways
        ],
    )
    [java, *ours] = ways
    for way in ours:
        ratios = [
            mine / theirs
            for mine, theirs in zip(took_ms[way], took_ms[java], strict=True)
        ]
        print(f"{way} / Redisson's: {spread(ratios, '{:.2f}')}; the goal is 0.2")
    scan_ms = statistics.median(scans_ms)
    print(
        f"one scan of the list: {scan_ms:.1f} ms; no script is to take longer than 5 ms and two"
        f" scans: {5 + 2 * scan_ms:.1f} ms\n"
    )


def now_ms() -> int:
    return int(time.time() * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.redisson", description=__doc__
    )
    parser.add_argument(
        "--redisson", default="4.7.0", help="the version on the other side"
    )
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    parser.add_argument("--only", choices=("stress", "burst"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    log = {"slowlog-log-slower-than": "200", "slowlog-max-len": "1024"}
    server = Server(options.server, log).start()
    # With the JVM's own choice of compiler and memory, as a service has it.
    peer = Peer(options.redisson, server.url, options=()).wait_ready()
    try:
        with redis.Redis.from_url(server.url) as client:
            print(
                f"{options.server} {'.'.join(map(str, server.version))},"
                f" {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n"
            )
            if options.only != "burst":
                stress(peer, client, server.url, options.rounds)
            if options.only != "stress":
                burst(peer, client, 20_000, options.rounds)
    finally:
        peer.kill()
        server.stop()


if __name__ == "__main__":
    main()
