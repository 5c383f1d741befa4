import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import queue_reads, states
from django_delayq.core import store as store_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.queues.transfer.push import FIRST_BATCH, MAX_BATCH, QueuePush, bounds
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.run import run
from django_delayq.waiting.alarm import CAP_MS
from django_delayq.wire.delay import MAX_START_TIME_MS
from django_delayq.wire.frame import FrameFormat, pack, unpack
from django_delayq.wire.queue_keys import QueueKeys
from tests.core.rig import payload
from tests.polling import takes_less_than, wait_until
from tests.queues.java import JavaQueue, frames_of, now_ms
from tests.queues.proxy import Proxy
from tests.servers import LASTING, Server

Make = Callable[..., Any]

CAP_S = CAP_MS / 1000
#: What is late by more was forgotten, also on a busy machine.
WITHIN_CAP_S = CAP_S + 10
JUNK = (b"", b"\0", b"seven..", b"\x08" + bytes(8) + b"\x63" + bytes(7) + b"too short")


@pytest.fixture
def keys(queue_name: str) -> DeliveryKeys:
    return DeliveryKeys.of(queue_name)


def test_mixed_frames_due_in_random_order_leave_the_list_exact(
    delayed: Make, client: redis.Redis, keys: DeliveryKeys, queue_name: str
) -> None:
    shuffled = random.Random(5)
    start = now_ms(client)
    java = [JavaQueue(client, queue_name, item) for item in FrameFormat]
    ours = [
        DelayedQueue(queue_name, connection=client, frame_format=item)
        for item in FrameFormat
    ]
    for queue in ours:
        queue.destroy()
    expected: list[bytes] = []
    for number in range(4_000):
        is_due = shuffled.random() < 0.7
        offset_ms = (
            shuffled.randrange(-5_000, 0)
            if is_due
            else shuffled.randrange(10**6, 10**7)
        )
        kind = shuffled.randrange(10)
        value = b"%d" % number
        if kind == 0:
            shuffled.choice(java).offer_at(value, start + offset_ms)
        elif kind < 4 and is_due:
            shuffled.choice(ours).offer(number, 0)
        else:
            offer = store_calls.NewJob(
                f"{number:022d}", f"={start + offset_ms}", "", value
            )
            run(
                client,
                store_calls.schedule(
                    store_calls.Target(
                        keys, frame_format=shuffled.choice(list(FrameFormat))
                    ),
                    [offer],
                ),
            )
        if is_due:
            expected.append(value)

    delayed()

    wait_until(
        lambda: client.llen(queue_name) >= len(expected),
        description="all that is due is transferred",
        timeout=90,
    )
    assert sorted(client.lrange(queue_name, 0, -1)) == sorted(expected)
    listed, waiting = frames_of(client, queue_name)
    assert len(listed) == len(waiting) == 4_000 - len(expected)
    assert set(listed) == waiting
    assert client.hexists(keys.counters, "sweeping") is False


def test_elements_are_transferred_in_the_order_of_their_start_times(
    delayed: Make, client: redis.Redis, queue_name: str
) -> None:
    java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
    start = now_ms(client)
    for number in random.Random(1).sample(range(500), 500):
        java.offer_at(b"%d" % number, start - 500 + number)

    delayed()

    wait_until(lambda: client.llen(queue_name) == 500, description="all transferred")
    assert client.lrange(queue_name, 0, -1) == [b"%d" % n for n in range(500)]


def test_equal_payloads_arrive_as_often_as_they_were_offered(
    delayed: Make, blocking: Make, client: redis.Redis, queue_name: str
) -> None:
    java = JavaQueue(client, queue_name, FrameFormat.DLC0)
    due = now_ms(client) + 100
    for _ in range(20):
        java.offer_at(b'"same"', due)
        delayed().offer("same", 0.1)

    wait_until(lambda: client.llen(queue_name) == 40, description="all transferred")
    assert blocking().drain_to(100) == ["same"] * 40


@pytest.mark.parametrize("score", [-1e15, -1.5, 0, 1.5])
def test_strange_score_is_due(
    delayed: Make, client: redis.Redis, queue_name: str, score: float
) -> None:
    JavaQueue(client, queue_name, FrameFormat.BC0LC0).offer_at(b"1", score)

    delayed()

    wait_until(lambda: client.llen(queue_name) == 1, description="transferred")
    assert frames_of(client, queue_name) == ([], set())


def test_fractional_start_time_of_the_future_is_waited_for(
    delayed: Make, client: redis.Redis, queue_name: str
) -> None:
    due = now_ms(client) + 100.5
    client.zadd(
        QueueKeys.of(queue_name).timeout_set,
        {pack(bytes(8), b"1", FrameFormat.BC0LC0): due},
    )

    delayed()

    wait_until(lambda: client.llen(queue_name) == 1, description="transferred")
    assert now_ms(client) >= due


def test_start_time_at_the_end_of_the_calendar_is_waited_for(
    delayed: Make, client: redis.Redis, queue_name: str
) -> None:
    JavaQueue(client, queue_name, FrameFormat.BC0LC0).offer_at(
        b"never", MAX_START_TIME_MS
    )
    delayed().offer("soon", 0.05)

    wait_until(
        lambda: client.llen(queue_name) == 1, description="the other is transferred"
    )
    assert len(delayed()) == 1


def test_what_is_no_frame_goes_to_the_quarantine_and_stops_nobody(
    delayed: Make, client: redis.Redis, keys: DeliveryKeys, queue_name: str
) -> None:
    java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
    start = now_ms(client)
    for number, junk in enumerate(JUNK):
        java.offer_at(b"%d" % number, start - 100 + 2 * number)
        client.zadd(keys.queue.timeout_set, {junk: start - 99 + 2 * number})
        client.rpush(keys.queue.delay_queue, junk)

    delayed()

    wait_until(
        lambda: client.llen(queue_name) == len(JUNK),
        description="the good are transferred",
    )
    page = run(client, queue_reads.page(keys, states.State.QUARANTINED))
    assert sorted(row.payload for row in page.rows) == sorted(JUNK)
    assert frames_of(client, queue_name) == ([], set())


def test_tombstones_of_a_script_that_was_stopped_halfway_are_swept(
    delayed: Make, client: redis.Redis, keys: DeliveryKeys, queue_name: str
) -> None:
    queue = delayed()
    for number in range(50):
        queue.offer(number, 600)
    # As a server that was killed between the first LSET and the LREM leaves it.
    gone = client.lrange(keys.queue.delay_queue, 10, 19)
    client.zrem(keys.queue.timeout_set, *gone)
    client.hset(keys.counters, "sweeping", 1)
    for index in range(10, 20):
        client.lset(keys.queue.delay_queue, index, b"\0")
    assert queue.read_all() == [*range(10), *range(20, 50)]

    queue.offer("due", 0.01)

    wait_until(lambda: client.llen(queue_name) == 1, description="transferred")
    listed, waiting = frames_of(client, queue_name)
    assert len(listed) == 40
    assert set(listed) == waiting


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.offer("x", 600),
        lambda queue: queue.remove(1),
        lambda queue: queue.remove_all([1]),
        lambda queue: queue.retain_all([1, 2, 3]),
        lambda queue: queue.poll(),
    ],
    ids=["offer", "remove", "remove_all", "retain_all", "poll"],
)
def test_whoever_writes_sweeps_tombstones(
    use: Callable[[DelayedQueue], object],
    delayed: Make,
    client: redis.Redis,
    keys: DeliveryKeys,
) -> None:
    queue = delayed()
    for number in range(5):
        queue.offer(number, 600)
    client.lset(keys.queue.delay_queue, 0, b"\0")
    client.hset(keys.counters, "sweeping", 1)

    use(queue)

    assert b"\0" not in client.lrange(keys.queue.delay_queue, 0, -1)
    assert client.hexists(keys.counters, "sweeping") is False


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_jobs_with_one_start_time_are_each_found_among_javas_frames(
    client: redis.Redis, keys: DeliveryKeys, queue_name: str, frame_format: FrameFormat
) -> None:
    due = now_ms(client) + 600_000
    java = [JavaQueue(client, queue_name, item) for item in FrameFormat]
    jobs = [
        store_calls.NewJob(f"{number:022d}", f"={due}", "", payload(f"{number:022d}"))
        for number in range(200)
    ]
    for number, job in enumerate(jobs):
        java[number % 2].offer_at(os.urandom(number % 40), due)
        other = list(FrameFormat)[number % 2] if number % 3 == 0 else frame_format
        run(
            client,
            store_calls.schedule(store_calls.Target(keys, frame_format=other), [job]),
        )

    for job in random.Random(3).sample(jobs, len(jobs)):
        found = run(client, queue_reads.inspect(keys, job.token))
        assert found.state is states.State.SCHEDULED
        assert found.payload == job.payload
    moved = run(client, change_calls.reschedule(keys, jobs[7].token, f"={due + 1}"))
    assert moved == (states.Change.RESCHEDULED, due + 1)
    for job in random.Random(4).sample(jobs, len(jobs)):
        (cancel,) = change_calls.cancel_many(keys, [job.token])
        assert run(client, cancel) == {job.token: states.Change.CANCELLED}

    listed, waiting = frames_of(client, queue_name)
    assert len(listed) == 200
    assert set(listed) == waiting
    assert not any(unpack(frame).payload.startswith(b'{"delayq"') for frame in waiting)


class TestWakeUps:
    def test_element_added_without_a_message_arrives_within_the_cap(
        self, delayed: Make, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        delayed().offer("late", 600)
        frame = pack(bytes(8), b'"silent"', FrameFormat.BC0LC0)
        client.zadd(QueueKeys.of(queue_name).timeout_set, {frame: now_ms(client) - 1})

        # Nothing but the cap brings it.
        assert blocking().poll(20) == "silent"

    def test_three_second_element_does_not_wait_for_the_fifty_second_one(
        self, delayed: Make, blocking: Make
    ) -> None:
        queue = delayed()
        queue.offer("50 s", 50)

        def wait_for_the_short_one() -> None:
            queue.offer("0.3 s", 0.3)
            assert blocking().poll(20) == "0.3 s"

        assert takes_less_than(1, wait_for_the_short_one)

    def test_subscription_that_is_killed_again_and_again_delays_nothing(
        self, delayed: Make, blocking: Make, client: redis.Redis
    ) -> None:
        queue, destination, took = delayed(), blocking(), []
        for number in range(20):
            for row in client.client_list(_type="pubsub"):
                client.client_kill_filter(_id=row["id"])
            begun = time.monotonic()
            queue.offer(number, 0.01)

            assert destination.poll(20) == number
            took.append(time.monotonic() - begun)
        # Most of them: this machine may pause, and a delay would be the cap.
        assert statistics.median(took) < 0.75 * CAP_S

    def test_every_connection_killed_delays_no_longer_than_the_cap(
        self, delayed: Make, blocking: Make, client: redis.Redis, server: Server
    ) -> None:
        delayed().offer("x", 0.3)

        with server.client() as other:
            other.client_kill_filter(_type="normal", skipme=True)
            other.client_kill_filter(_type="pubsub")

        # Nothing but the cap brings it.
        assert blocking().poll(20) == "x"

    def test_elements_are_transferred_within_the_cap_of_the_servers_return(
        self, private_server: Callable[..., Server]
    ) -> None:
        server = private_server(**LASTING)
        client = server.client()
        with DelayedQueue("q", connection=client) as queue:
            queue.offer("due while away", 0.5)
            queue.offer("due after", 3)
            server.kill()
            time_away = time.monotonic() + 1.2
            wait_until(lambda: time.monotonic() > time_away, description="it is due")
            server.start()
            back = time.monotonic()

            with BlockingQueue("q", connection=client) as destination:
                assert destination.poll(20) == "due while away"
                assert time.monotonic() - back < WITHIN_CAP_S
                assert destination.poll(20) == "due after"

    def test_connections_that_are_dead_and_open_delay_less_than_five_seconds(
        self, proxy: Proxy, blocking: Make, queue_name: str
    ) -> None:
        client = redis.Redis.from_url(proxy.url)
        with client, DelayedQueue(queue_name, connection=client) as queue:

            def wait_while_dead() -> None:
                client.connection_pool.disconnect()
                queue.offer("x", 0.5)
                proxy.freeze()
                assert blocking().poll(60) == "x"

            assert takes_less_than(5.5, wait_while_dead)

            # The frozen channel is noticed, too: what comes later is in time again.
            soon = time.monotonic() + 2.5
            wait_until(lambda: time.monotonic() > soon, description="it is noticed")

            def wait_for_the_next() -> None:
                client.connection_pool.disconnect()
                queue.offer("y", 0.05)
                assert blocking().poll(20) == "y"

            assert takes_less_than(1.5, wait_for_the_next)

    @pytest.mark.slow
    def test_server_that_stood_still_is_transferred_from_within_the_cap(
        self, private_server: Callable[..., Server]
    ) -> None:
        server = private_server()
        with DelayedQueue("q", connection=server.client()) as queue:
            queue.offer("x", 1)
            os.kill(server.pid, signal.SIGSTOP)
            still = time.monotonic() + 5
            wait_until(lambda: time.monotonic() > still, description="it stands still")
            os.kill(server.pid, signal.SIGCONT)

            with BlockingQueue("q", connection=server.client()) as destination:
                assert destination.poll(20) == "x"

    def test_destruction_does_not_wait_for_a_server_that_is_away(
        self, private_server: Callable[..., Server]
    ) -> None:
        def destroy() -> None:
            server = private_server()
            queue = DelayedQueue("q", connection=server.client())
            queue.offer("x", 600)
            server.kill()
            begun = time.monotonic()
            queue.destroy()
            took.append(time.monotonic() - begun)

        took: list[float] = []
        for _ in range(3):
            destroy()
        assert min(took) < 1.5

    def test_idle_queue_costs_a_push_for_each_cap_and_nothing_else(
        self, private_server: Callable[..., Server]
    ) -> None:
        client = private_server().client()
        with DelayedQueue("q", connection=client) as queue:
            queue.offer("x", 600)
            wait_until(
                lambda: client.pubsub_numsub("redisson_delay_queue_channel:{q}")[0][1],
                description="subscribed",
            )
            before = asked(client)
            begun, cpu = time.monotonic(), time.process_time()

            wait_until(
                lambda: time.monotonic() - begun > 2.5 * CAP_S,
                description="the caps go by",
            )

            # Looking at the clock each 2 ms is the test's own doing.
            assert time.process_time() - cpu < 1
            calls, caps = asked(client) - before, (time.monotonic() - begun) / CAP_S
            # A push and a ping for each cap; the push on the subscription may have come after we looked, too, and have
            # found its script unknown.
            assert 2 <= calls <= 2 * caps + 3


def new_sizer() -> BatchSizer:
    return BatchSizer(first=FIRST_BATCH, least=FIRST_BATCH // 4, most=MAX_BATCH)


def next_batch(took_ms: float) -> int:
    """Return the size of the call after one that took so long."""
    sizer = new_sizer()
    sizer.bound(*bounds(0))
    sizer.learn(FIRST_BATCH, took_ms)
    return sizer.size


class TestPush:
    def test_batch_grows_while_calls_are_quick_and_shrinks_when_they_are_not(
        self,
    ) -> None:
        assert FIRST_BATCH < next_batch(0.5) <= 1.51 * FIRST_BATCH
        assert FIRST_BATCH > next_batch(50) >= 0.5 * FIRST_BATCH

    @pytest.mark.parametrize(
        ("listed", "slow", "quick"),
        [(0, 25, 400), (100_000, 91, 488), (1_000_000, 681, 1275), (10**8, 2000, 2000)],
    )
    def test_batch_is_worth_the_scan_of_the_list_that_it_costs(
        self, listed: int, slow: int, quick: int
    ) -> None:
        at_worst, at_best = new_sizer(), new_sizer()
        for _ in range(100):
            for sizer, element_ms in ((at_worst, 10.0), (at_best, 0.001)):
                sizer.bound(*bounds(listed))
                sizer.learn(sizer.size, sizer.size * element_ms)
                assert slow <= sizer.size <= quick

        assert (at_worst.size, at_best.size) == (slow, quick)

    def test_push_measures_full_batches_only(
        self,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
        for number in range(3 * FIRST_BATCH):
            java.offer_at(b"%d" % number, 0)
        queue_push = QueuePush(client, keys)
        sizer = queue_push.sizer

        # What a call takes decides of it, and that may be just what it should.
        def learn(moved: int, took_ms: float) -> None:
            sizer.size = moved + 1

        monkeypatch.setattr(sizer, "learn", learn)

        assert queue_push() == (FIRST_BATCH, 0)
        assert sizer.size == FIRST_BATCH + 1
        assert queue_push() == (FIRST_BATCH + 1, 0)
        assert sizer.size == FIRST_BATCH + 2
        assert queue_push() == (FIRST_BATCH - 1, -1)
        assert sizer.size == FIRST_BATCH + 2
        queue_push.close()

    def test_push_that_lost_its_reply_moved_nothing_twice(
        self, client: redis.Redis, keys: DeliveryKeys, proxy: Any, queue_name: str
    ) -> None:
        java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
        for number in range(10):
            java.offer_at(b"%d" % number, 0)
        sha = claim_calls.transfer(keys, batch=1).script.sha
        through_proxy = redis.Redis.from_url(proxy.url)
        queue_push = QueuePush(through_proxy, keys)
        queue_push()
        java.offer_at(b"10", 0)
        proxy.lose_reply_to(sha.encode())

        with pytest.raises(redis.ConnectionError):
            queue_push()
        assert queue_push().moved == 0

        moved = sorted(int(value) for value in client.lrange(queue_name, 0, -1))
        assert moved == list(range(11))
        queue_push.close()
        through_proxy.close()


def asked(client: redis.Redis) -> int:
    """Count what clients have asked for, what scripts did and this question left aside."""
    names = ("evalsha", "eval", "subscribe", "ping")
    statistics = client.info("commandstats")
    return sum(
        statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names
    )
