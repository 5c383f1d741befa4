"""``python -m benchmarks.transfer``: how fast, and how late, are due elements transferred?

Three answers, each on a queue of its own:

1. 100,000 elements wait, their start times in random order, and all are due. The first ten thousand are moved, by
   Redisson's script (its commands, in its order, batches of 100) and by ours, in turns. One scan of the list is
   timed for comparison: every call of either pays for at least one.
2. 20,000 elements fall due at one instant, while a `DelayedQueue` transfers.
3. 50 elements a second fall due on an idle queue: how late are they in the destination queue?

``--url`` names a server that runs already; the keys of the three queues are deleted before and after.
"""

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from benchmarks.bench import (
    delete_queue,
    percentile,
    rate,
    slowest_us,
    spread,
    table,
)
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.queues.transfer.push import QueuePush
from django_delayq.transport.several import run_all
from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.wire.script_calls import offer
from tests.clock import at
from tests.servers import Server, available_kinds

#: What RedissonDelayedQueue's pushTask does, command by command.
REDISSON = """
local due = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], 'limit', 0, ARGV[2])
for _, frame in ipairs(due) do
  local _, payload = struct.unpack('Bc0Lc0', frame)
  redis.call('rpush', KEYS[1], payload)
  redis.call('lrem', KEYS[3], 1, frame)
end
if #due > 0 then redis.call('zrem', KEYS[2], unpack(due)) end
local head = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
return { #due, head[2] }
"""
REDISSON_BATCH = 100
PAYLOAD_BYTES = 100


@contextmanager
def server_of(url: str | None, kind: str) -> Iterator[redis.Redis]:
    if url is not None:
        with redis.Redis.from_url(url) as client:
            yield client
        return
    server = Server(kind, {"slowlog-log-slower-than": "200", "slowlog-max-len": "1024"})
    try:
        with redis.Redis.from_url(server.start().url) as client:
            yield client
    finally:
        server.stop()


def start_times(count: int) -> list[int]:
    """Return that many start times of the past, in random order."""
    now_ms = int(time.time() * 1000)
    times = [now_ms - 1_000_000 - number for number in range(count)]
    random.Random(1).shuffle(times)
    return times


def fill_as_java(client: redis.Redis, keys: DeliveryKeys, times: Sequence[int]) -> None:
    queue = keys.queue
    pipeline = client.pipeline(transaction=False)
    for number, start_time_ms in enumerate(times):
        frame = pack(os.urandom(8), payload_of(number), FrameFormat.BC0LC0)
        pipeline.zadd(queue.timeout_set, {frame: start_time_ms})
        pipeline.rpush(queue.delay_queue, frame)
        if number % 2_000 == 1_999:
            pipeline.execute()
    pipeline.execute()


def fill_as_we_do(
    client: redis.Redis, keys: DeliveryKeys, times: Sequence[int]
) -> None:
    # A start time of the past would mean now, so the clock is set back while they are offered.
    for first in range(0, len(times), 1_000):
        calls = [
            at(0, offer(keys.queue, payload_of(number), f"={times[number]}"))
            for number in range(first, min(len(times), first + 1_000))
        ]
        for reply in run_all(client, calls):
            assert not isinstance(reply, Exception), reply


def payload_of(number: int) -> bytes:
    return b'{"number":%d,"text":"%s"}' % (number, b"x" * (PAYLOAD_BYTES - 30))


def move_as_redisson(client: redis.Redis, keys: DeliveryKeys, count: int) -> int:
    queue = keys.queue
    push = client.register_script(REDISSON)
    names = [queue.destination, queue.timeout_set, queue.delay_queue]
    moved = 0
    while moved < count:
        moved += push(names, [int(time.time() * 1000), REDISSON_BATCH])[0]
    return moved


def move_as_we_do(client: redis.Redis, keys: DeliveryKeys, count: int) -> int:
    push = QueuePush(client, keys)
    moved = 0
    while moved < count:
        moved += push().moved
    push.close()
    return moved


def scan_us(client: redis.Redis, keys: DeliveryKeys) -> int:
    """Return how long one scan of the delay queue holds the server."""
    client.slowlog_reset()
    client.lrem(keys.queue.delay_queue, 1, b"is not there")
    return slowest_us(client)[0]


def compare(client: redis.Redis, waiting: int, moving: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {"Redisson's script": [], "ours": []}
    slowest: dict[str, list[int]] = {name: [] for name in rates}
    scans = []
    ways = {
        "Redisson's script": (fill_as_java, move_as_redisson),
        "ours": (fill_as_we_do, move_as_we_do),
    }
    for _ in range(rounds):
        for name, (fill, move) in ways.items():
            keys = DeliveryKeys.of("delayq-bench-transfer")
            delete_queue(client, keys.queue.name)
            fill(client, keys, start_times(waiting))
            scans.append(scan_us(client, keys))
            client.slowlog_reset()
            rates[name].append(rate(lambda: move(client, keys, moving)))  # noqa: B023
            slowest[name].append(slowest_us(client)[0])
            delete_queue(client, keys.queue.name)
    ratios = [
        ours / theirs
        for ours, theirs in zip(rates["ours"], rates["Redisson's script"], strict=True)
    ]
    scan_ms = statistics.median(scans) / 1000
    print(
        f"{waiting:,} wait in random order of their start times, the first {moving:,} are moved\n"
    )
    table(
        ("", "elements a second", "slowest call, ms"),
        [
            (
                name,
                spread(rates[name]),
                spread([us / 1000 for us in slowest[name]], "{:.1f}"),
            )
            for name in rates
        ],
    )
    print(f"ours / Redisson's: {spread(ratios, '{:.1f}')}; the goal is 10")
    print(
        f"one scan of the list: {scan_ms:.1f} ms; no call is to take longer than 5 ms and two scans:"
        f" {5 + 2 * scan_ms:.1f} ms\n"
    )


def burst(client: redis.Redis, count: int) -> None:
    keys = DeliveryKeys.of("delayq-bench-burst")
    delete_queue(client, keys.queue.name)
    due_ms = int(time.time() * 1000) + 3_000 + count // 10
    for first in range(0, count, 1_000):
        run_all(
            client,
            [
                offer(keys.queue, payload_of(number), f"={due_ms}")
                for number in range(first, first + 1_000)
            ],
        )
    client.slowlog_reset()
    with DelayedQueue(keys.queue.name, connection=client):
        while client.llen(keys.queue.destination) < count:
            time.sleep(0.002)
        took_ms = time.time() * 1000 - due_ms
    print(
        f"{count:,} elements due at one instant: {took_ms:,.0f} ms to the last,"
        f" slowest call {slowest_us(client)[0] / 1000:.1f} ms\n"
    )
    delete_queue(client, keys.queue.name)


def lateness(client: redis.Redis, per_second: int, seconds: int) -> None:
    """Measure from start time to the reply of a BLPOP, on one machine and so on one clock."""
    keys = DeliveryKeys.of("delayq-bench-lateness")
    delete_queue(client, keys.queue.name)
    count = per_second * seconds
    now_ms = int(time.time() * 1000)
    chance = random.Random(2)
    due = [now_ms + 500 + chance.randrange(seconds * 1000) for _ in range(count)]
    run_all(client, [offer(keys.queue, b"%d" % ms, f"={ms}") for ms in due])
    late_ms: list[float] = []

    def consume() -> None:
        with redis.Redis(connection_pool=client.connection_pool) as own:
            while len(late_ms) < count:
                reply = own.blpop([keys.queue.destination], 30)
                late_ms.append(time.time() * 1000 - int(reply[1]))

    with DelayedQueue(keys.queue.name, connection=client):
        consumer = threading.Thread(target=consume)
        cpu = time.process_time()
        consumer.start()
        consumer.join()
        cpu = (time.process_time() - cpu) / seconds
    print(f"{per_second} elements a second on an idle queue, {count:,} in all\n")
    table(
        ("p50", "p90", "p99", "max", "CPU of client"),
        [
            (
                *(
                    f"{percentile(late_ms, share):.2f} ms"
                    for share in (0.5, 0.9, 0.99, 1)
                ),
                f"{cpu:.1%}",
            )
        ],
    )
    print(f"none early: {min(late_ms) >= 0}; the goal is a p50 of 1.5 ms\n")
    delete_queue(client, keys.queue.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument(
        "--server", default=None, help="a kind that tests/servers.py finds"
    )
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--moving", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    kind = options.server or available_kinds()[0]
    with server_of(options.url, kind) as client:
        information = client.info("server")
        version = information.get("valkey_version") or information["redis_version"]
        print(
            f"{information.get('server_name', 'redis')} {version}, redis-py {redis.__version__}, load {os.getloadavg()[0]:.1f}\n"
        )
        compare(client, options.waiting, options.moving, options.rounds)
        burst(client, 20_000)
        lateness(client, 50, options.seconds)


if __name__ == "__main__":
    main()
