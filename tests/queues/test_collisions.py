"""The class of bug of Redisson #3302: an element that comes as a wait ends, or as its taker goes, must not be lost.

Every test pushes numbered elements while the takers' waits end, are interrupted or lose their connections, and
counts: each element is received exactly once.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.connection import UnixDomainSocketConnection

from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.blocking_queue import BlockingQueue
from tests.polling import await_until, wait_until
from tests.servers import LASTING, Server

Make = Callable[..., BlockingQueue]


class Received:
    """What takers got, and the end of the test."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._values: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, value: Any) -> None:
        if value is not None:
            with self._lock:
                self._values[value] += 1

    @property
    def is_complete(self) -> bool:
        return len(self._values) >= self.count

    def assert_each_once(self) -> None:
        assert set(self._values) == set(range(self.count))
        assert max(self._values.values()) == 1, self._values.most_common(5)


@pytest.mark.slow
def test_elements_pushed_when_polls_time_out_are_received_exactly_once(
    blocking: Make, client: redis.Redis, server: Server, queue_name: str
) -> None:
    received = Received(20_000)
    queue = blocking()
    ended = threading.Event()

    def poll() -> None:
        while not received.is_complete and not ended.is_set():
            # So short that most polls end with the element on its way, or just not.
            received.add(queue.poll(random.choice((0.0002, 0.0005, 0.001))))

    def push() -> None:
        with server.client() as own:
            for number in range(received.count):
                own.rpush(queue_name, number)

    threads = [threading.Thread(target=poll) for _ in range(3)]
    threads.append(threading.Thread(target=push))
    run_to_the_end(threads, ended, received)

    received.assert_each_once()
    assert_nothing_left(client, queue_name)


@pytest.mark.slow
async def test_elements_pushed_when_takes_are_cancelled_are_received_exactly_once(
    blocking: Make,
    client: redis.Redis,
    async_client: redis.asyncio.Redis,
    queue_name: str,
) -> None:
    received = Received(3_000)
    queue = blocking(lease=5)
    cancelled = 0

    async def take_and_cancel() -> None:
        nonlocal cancelled
        while not received.is_complete:
            take = asyncio.create_task(queue.atake())
            # Anywhere between the claim, the wait and the confirmation.
            await asyncio.sleep(random.uniform(0, random.choice((0.004, 0.04))))
            take.cancel()
            try:
                received.add(await take)
            except asyncio.CancelledError:
                cancelled += 1

    async def push() -> None:
        for number in range(received.count):
            await async_client.rpush(queue_name, number)
            if number % 3 == 0:
                await asyncio.sleep(random.uniform(0, 0.002))

    await asyncio.wait_for(
        asyncio.gather(push(), *(take_and_cancel() for _ in range(3))), 300
    )

    received.assert_each_once()
    assert cancelled > 50
    await await_until(
        lambda: not client.exists(DeliveryKeys.of(queue_name).leases),
        description="what the last cancelled ones held is given back",
    )
    assert_nothing_left(client, queue_name)


@pytest.mark.slow
async def test_elements_pushed_when_wait_for_ends_are_received_exactly_once(
    blocking: Make,
    client: redis.Redis,
    async_client: redis.asyncio.Redis,
    queue_name: str,
) -> None:
    received = Received(3_000)
    queue = blocking(lease=5)
    timed_out = 0

    async def take() -> None:
        nonlocal timed_out
        while not received.is_complete:
            try:
                timeout = random.uniform(0.0005, random.choice((0.004, 0.04)))
                received.add(await asyncio.wait_for(queue.atake(), timeout))
            except TimeoutError:
                timed_out += 1

    async def push() -> None:
        for number in range(received.count):
            await async_client.rpush(queue_name, number)
            if number % 3 == 0:
                await asyncio.sleep(random.uniform(0, 0.002))

    await asyncio.wait_for(asyncio.gather(push(), *(take() for _ in range(3))), 300)

    received.assert_each_once()
    assert timed_out > 50
    assert_nothing_left(client, queue_name)


class Interrupt(BaseException):
    """Stands in for KeyboardInterrupt."""


class InterruptedConnection(UnixDomainSocketConnection):
    """Interrupts its user now and then, before a command is sent, after that, or once the reply is there."""

    #: One call in so many.
    rarity = 8
    armed = threading.local()

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        self._strike()
        super().send_command(*args, **kwargs)
        self._strike()

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = super().read_response(*args, **kwargs)
        self._strike()
        return reply

    def _strike(self) -> None:
        if getattr(self.armed, "is_armed", False) and random.random() < 1 / self.rarity:
            # As after one Ctrl-C: what cleans up is left alone.
            self.armed.is_armed = False
            self.disconnect()
            raise Interrupt


@pytest.fixture
def interrupted(server: Server) -> Iterator[redis.Redis]:
    pool = redis.ConnectionPool(
        connection_class=InterruptedConnection, path=str(server.socket_path)
    )
    client = redis.Redis(connection_pool=pool)
    yield client
    client.close()
    pool.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["poll", "drain_to"])
def test_elements_taken_while_the_taker_is_interrupted_are_received_exactly_once(
    interrupted: redis.Redis, client: redis.Redis, queue_name: str, method: str
) -> None:
    received = Received(2_000)
    ended = threading.Event()
    interrupts = 0
    queue = BlockingQueue(queue_name, connection=interrupted, lease=2)
    client.rpush(queue_name, *range(received.count))

    def take() -> None:
        nonlocal interrupts
        while not received.is_complete and not ended.is_set():
            InterruptedConnection.armed.is_armed = True
            try:
                if method == "drain_to":
                    for value in queue.drain_to(5):
                        received.add(value)
                else:
                    received.add(queue.poll(0.5))
            except Interrupt:
                interrupts += 1
            finally:
                InterruptedConnection.armed.is_armed = False

    run_to_the_end([threading.Thread(target=take) for _ in range(2)], ended, received)

    received.assert_each_once()
    assert interrupts > 100
    assert_nothing_left(client, queue_name)
    queue.close()


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 3])
def test_elements_taken_while_connections_are_killed_are_received_exactly_once(
    server: Server, client: redis.Redis, queue_name: str, retries: int
) -> None:
    received = Received(5_000)
    ended = threading.Event()
    taker = server.client(
        client_name=f"taker-{queue_name}",
        retry=redis.retry.Retry(redis.backoff.NoBackoff(), retries),
    )
    queue = BlockingQueue(queue_name, connection=taker, lease=1)
    kills = 0

    def take() -> None:
        while not received.is_complete and not ended.is_set():
            try:
                received.add(queue.poll(0.5))
            except redis.ConnectionError:
                continue

    def push() -> None:
        with server.client() as own:
            for number in range(received.count):
                own.rpush(queue_name, number)
                if number % 50 == 0:
                    time.sleep(random.uniform(0, 0.005))

    def kill() -> None:
        nonlocal kills
        with server.client() as own:
            while not received.is_complete and not ended.is_set():
                for row in own.client_list():
                    if row["name"] == f"taker-{queue_name}" and random.random() < 0.5:
                        kills += own.client_kill_filter(_id=row["id"])
                time.sleep(random.uniform(0, 0.02))

    threads = [threading.Thread(target=take) for _ in range(3)]
    threads += [threading.Thread(target=push), threading.Thread(target=kill)]
    run_to_the_end(threads, ended, received)

    received.assert_each_once()
    assert kills > 50
    assert_nothing_left(client, queue_name)
    queue.close()


@pytest.mark.slow
def test_elements_taken_while_the_server_restarts_are_received_exactly_once(
    private_server: Callable[..., Server],
) -> None:
    received = Received(2_000)
    ended = threading.Event()
    server = private_server(**LASTING)
    queue = BlockingQueue("q", connection=server.client(), lease=1)

    def take() -> None:
        while not received.is_complete and not ended.is_set():
            try:
                received.add(queue.poll(0.5))
            except redis.ConnectionError:
                continue

    client = server.client()
    client.rpush("q", *range(received.count))
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = client.llen("q")
        wait_until(
            lambda before=before: client.llen("q") < max(before - 100, 1),
            description="some are taken",
        )
        server.kill()
        server.start()
    run_to_the_end(threads, ended, received, are_started=True)

    received.assert_each_once()
    assert_nothing_left(client, "q")
    queue.close()


def run_to_the_end(
    threads: list[threading.Thread],
    ended: threading.Event,
    received: Received,
    *,
    are_started: bool = False,
) -> None:
    try:
        if not are_started:
            for thread in threads:
                thread.start()
        wait_until(
            lambda: received.is_complete, description="all received", timeout=300
        )
    finally:
        ended.set()
        for thread in threads:
            thread.join(20)


def assert_nothing_left(client: redis.Redis, queue_name: str) -> None:
    keys = DeliveryKeys.of(queue_name)
    left = (keys.queue.destination, keys.leases, keys.headers, keys.payloads)
    assert [key for key in left if client.exists(key)] == []
