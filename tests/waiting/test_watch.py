import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from django_delayq.waiting.watch import DestinationWatch, Peek
from tests.polling import takes_less_than, wait_until
from tests.servers import Server


@pytest.fixture
def watch(client: redis.Redis) -> Iterator[DestinationWatch]:
    watch = DestinationWatch(client)
    yield watch
    watch.stop()


@pytest.fixture
def rung() -> threading.Semaphore:
    """Counts the calls: ``watch.arm(key, rung.release)``."""
    return threading.Semaphore(0)


def blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def wait_until_blocked(client: redis.Redis, count: int = 1) -> None:
    wait_until(lambda: blocked(client) >= count, description="BLMOVE waits")


def test_armed_watch_calls_when_the_list_fills_and_takes_nothing_out(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    watch.arm(queue_name, rung.release)
    wait_until_blocked(client)

    client.rpush(queue_name, "a", "b", "c")

    assert rung.acquire(timeout=30)
    assert client.lrange(queue_name, 0, -1) == [b"a", b"b", b"c"]


def test_watch_calls_once_until_it_is_armed_again(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    watch.arm(queue_name, rung.release)
    client.rpush(queue_name, "a")
    assert rung.acquire(timeout=30)

    client.rpush(queue_name, "b")
    assert not rung.acquire(timeout=0.05)

    watch.arm(queue_name, rung.release)
    assert rung.acquire(timeout=30)


def test_disarmed_watch_is_silent_costs_nothing_and_can_be_armed_again(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    watch.arm(queue_name, rung.release)
    wait_until_blocked(client)
    watch.disarm(queue_name)

    client.rpush(queue_name, "a")
    begun = time.thread_time(), time.process_time()
    assert not rung.acquire(timeout=0.3)
    spent = time.process_time() - begun[1] - (time.thread_time() - begun[0])
    assert spent < 0.1

    watch.arm(queue_name, rung.release)
    assert rung.acquire(timeout=30)


def test_one_thread_watches_many_lists(
    client: redis.Redis, queue_name: str, watch: DestinationWatch
) -> None:
    called: list[int] = []
    for number in range(20):
        watch.arm(f"{queue_name}:{number}", lambda number=number: called.append(number))
    wait_until_blocked(client, 20)

    for number in (7, 3, 11):
        client.rpush(f"{queue_name}:{number}", "x")
        wait_until(lambda: called[-1:] == [number], description=f"{number} called")  # noqa: B023

    assert called == [7, 3, 11]


def test_forgotten_list_gives_its_connection_back(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    watch.arm(queue_name, rung.release)
    wait_until_blocked(client)

    watch.forget(queue_name)

    wait_until(lambda: blocked(client) == 0, description="nobody waits")
    client.rpush(queue_name, "x")
    assert not rung.acquire(timeout=0.05)


def test_wait_goes_on_when_the_server_says_that_the_time_is_over(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.watch.WATCH_MS", 20)
    watch.arm(queue_name, rung.release)

    def calls() -> int:
        # A server that has ended none yet does not name the command.
        stats = client.info("commandstats").get("cmdstat_blmove", {"calls": 0})
        return int(stats["calls"])

    wait_until_blocked(client)
    before = calls()
    wait_until(lambda: calls() >= before + 3, description="three time-outs")

    client.rpush(queue_name, "x")

    assert rung.acquire(timeout=30)


def test_killed_connection_is_replaced(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    watch.arm(queue_name, rung.release)
    wait_until_blocked(client)

    for row in client.client_list():
        if row["cmd"] == "blmove":
            client.client_kill_filter(_id=row["id"])
    client.rpush(queue_name, "x")

    assert rung.acquire(timeout=30)


def test_list_of_another_type_is_looked_at_again_once_it_is_a_list(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.watch.BACKOFF_MS", 30)
    client.set(queue_name, "no list")
    watch.arm(queue_name, rung.release)
    assert not rung.acquire(timeout=0.05)

    client.delete(queue_name)
    client.rpush(queue_name, "x")

    assert rung.acquire(timeout=30)


def test_list_of_another_type_is_logged_once_until_that_is_over(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="django_delayq.waiting.watch")
    monkeypatch.setattr("django_delayq.waiting.watch.BACKOFF_MS", 10)
    levels = lambda: [record.levelname for record in caplog.records]  # noqa: E731

    def spoil_until_logged(count: int) -> None:
        client.set(queue_name, "no list")
        watch.arm(queue_name, rung.release)
        wait_until(lambda: len(levels()) >= count, description=f"{count} attempts")
        client.delete(queue_name)
        client.rpush(queue_name, "x")
        assert rung.acquire(timeout=30)

    spoil_until_logged(3)
    first = levels()
    client.delete(queue_name)
    spoil_until_logged(len(first) + 3)

    assert first.count("WARNING") == 1
    assert levels()[len(first)] == "WARNING"
    assert levels().count("WARNING") == 2
    assert "WRONGTYPE" in caplog.text


def test_full_server_is_no_reason_to_stop_watching(
    private_server: Callable[..., Server],
    queue_name: str,
    rung: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.watch.BACKOFF_MS", 30)
    client = private_server(maxmemory="1").client()
    watch = DestinationWatch(client)
    watch.arm(queue_name, rung.release)
    assert not rung.acquire(timeout=0.1)

    client.config_set("maxmemory", 0)
    client.rpush(queue_name, "x")

    assert rung.acquire(timeout=30)
    watch.stop()


def test_server_restarted_between_two_arms_is_watched_at_once(
    private_server: Callable[..., Server],
    queue_name: str,
    rung: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.watch.BACKOFF_MS", 60_000)
    server = private_server()
    watch = DestinationWatch(server.client())
    watch.arm(queue_name, rung.release)
    server.client().rpush(queue_name, "x")
    assert rung.acquire(timeout=30)
    server.restart(keep_data=False)

    watch.arm(queue_name, rung.release)
    wait_until_blocked(server.client())
    server.client().rpush(queue_name, "x")

    assert rung.acquire(timeout=30)
    watch.stop()


def test_callback_that_fails_does_not_end_the_watch(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    watch.arm(f"{queue_name}:1", fail)
    client.rpush(f"{queue_name}:1", "x")
    watch.arm(queue_name, rung.release)
    client.rpush(queue_name, "x")

    assert rung.acquire(timeout=30)


def test_stop_ends_the_thread_and_its_connections(
    client: redis.Redis,
    queue_name: str,
    watch: DestinationWatch,
    rung: threading.Semaphore,
) -> None:
    # Another test's may be at its end.
    before = set(threading.enumerate())
    watch.arm(queue_name, rung.release)
    wait_until_blocked(client)
    new = set(threading.enumerate()) - before
    (ours,) = (thread for thread in new if thread.name == "delayq-watch")

    watch.stop()
    watch.stop()

    assert not ours.is_alive()
    wait_until(lambda: blocked(client) == 0, description="nobody waits")


def test_peek_is_over_after_the_time_it_was_given(
    client: redis.Redis, queue_name: str
) -> None:
    def look() -> None:
        peek = Peek(client, queue_name)
        begun = time.monotonic()
        peek.begin(30)
        assert not peek.finish()
        assert time.monotonic() - begun > 0.02
        peek.close()

    assert takes_less_than(1, look)


def test_peek_that_was_called_off_can_begin_again(
    client: redis.Redis, queue_name: str
) -> None:
    peek = Peek(client, queue_name)
    peek.begin()
    peek.close()
    client.rpush(queue_name, "x")

    peek.begin()

    assert peek.finish()
    peek.close()
