"""Key-expiry notifications: what a listener misses, gets twice, and gets late.

``python -m benchmarks.why.key_expiry [keys] [bystanders]``
"""

import sys
import threading
import time

from redis import Redis

from tests.servers import Server, available_kinds

EXPIRED = "__keyevent@0__:expired"
#: How long to wait for the last event.
PATIENCE_S = 60


class Listener:
    """Collects expiry events, with the time at which each arrived."""

    def __init__(self, client: Redis) -> None:
        self.arrived: dict[bytes, float] = {}
        self._subscription = client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(EXPIRED)
        self._subscription.get_message(timeout=1)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._is_ended = False
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_ended:
            message = self._subscription.get_message(timeout=0.05)
            if message is not None:
                self.arrived[message["data"]] = time.time()

    def stop(self) -> None:
        self._is_ended = True
        self._thread.join()
        self._subscription.close()


def set_keys(
    client: Redis, count: int, first_ms: int, last_ms: int
) -> dict[bytes, float]:
    """Set keys that expire one after the other; returns when each should."""
    due: dict[bytes, float] = {}
    pipeline = client.pipeline(transaction=False)
    begun = time.time()
    for i in range(count):
        wait_ms = first_ms + (last_ms - first_ms) * i // count
        key = f"job:{i}".encode()
        due[key] = begun + wait_ms / 1000
        pipeline.set(key, b"what to do", px=wait_ms)
    pipeline.execute()
    return due


def away_for_a_moment(client: Redis, count: int) -> int:
    """A listener that loses its connection for one second of five; returns the events it never sees."""
    due = set_keys(client, count, 1_000, 5_000)
    first = Listener(client)
    time.sleep(2)
    first.stop()
    time.sleep(1)
    second = Listener(client)
    time.sleep(4)
    second.stop()
    return len(due.keys() - first.arrived.keys() - second.arrived.keys())


def two_listeners(client: Redis, count: int) -> int:
    """Two workers that listen; returns the events that both of them got."""
    set_keys(client, count, 500, 1_500)
    listeners = [Listener(client), Listener(client)]
    time.sleep(3)
    for listener in listeners:
        listener.stop()
    return len(listeners[0].arrived.keys() & listeners[1].arrived.keys())


def among_others(client: Redis, count: int, bystanders: int) -> list[float]:
    """Keys that expire soon among many that expire in an hour; returns how late each event was that came, s."""
    for start in range(0, bystanders, 10_000):
        pipeline = client.pipeline(transaction=False)
        for i in range(start, min(start + 10_000, bystanders)):
            pipeline.set(f"session:{i}", b"", ex=3_600)
        pipeline.execute()
    listener = Listener(client)
    due = set_keys(client, count, 500, 1_500)
    give_up = time.time() + PATIENCE_S
    while len(listener.arrived) < count and time.time() < give_up:
        time.sleep(0.05)
    listener.stop()
    client.flushall()
    return sorted(moment - due[key] for key, moment in listener.arrived.items())


def main(count: int = 1_000, bystanders: int = 500_000) -> None:
    for kind in available_kinds():
        server = Server(kind, {"notify_keyspace_events": "Ex"}).start()
        client = server.client()
        print(f"{kind} {'.'.join(map(str, server.version))}, {count:,} keys")
        print(
            f"  listener away for 1 s of 5: {away_for_a_moment(client, count):,} events never seen"
        )
        print(f"  two listeners: {two_listeners(client, count):,} events seen by both")
        for others in (0, bystanders):
            late = among_others(client, count, others)
            print(
                f"  among {others:,} keys that expire later: {len(late):,} events within {PATIENCE_S} s,"
                f" {late[len(late) // 2] * 1000:,.0f} ms late at p50, {late[-1] * 1000:,.0f} ms at worst"
            )
        server.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
