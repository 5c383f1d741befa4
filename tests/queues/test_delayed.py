import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
import redis

from django_delayq.core import queue_reads, states
from django_delayq.core import store as store_calls
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import PACKAGES
from django_delayq.exceptions import (
    DecodeError,
    EncodeError,
    InvalidDelay,
    InvalidSettings,
    MaybeScheduled,
)
from django_delayq.queues import delayed_queue as delayed_module
from django_delayq.queues import queue_calls
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.transport.bind import bind_in
from django_delayq.transport.performed import steps_of
from django_delayq.transport.run import run
from django_delayq.transport.several import run_all
from django_delayq.wire.frame import FrameFormat, pack, unpack
from django_delayq.wire.queue_keys import QueueKeys
from tests.core.rig import payload
from tests.polling import wait_until
from tests.queues.java import JavaQueue, frames_of, make_due, now_ms
from tests.queues.proxy import Proxy
from tests.servers import Server

Make = Callable[..., DelayedQueue]
MakeBlocking = Callable[..., BlockingQueue]
Face = Callable[[Any], Any]

#: Later than any test takes.
LATER = 600


@pytest.fixture(params=[True, False], ids=["listed", "unlisted"])
def insertion_list(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def queue(delayed: Make, face: Face) -> Any:
    return face(delayed())


@pytest.fixture
def three(delayed: Make, face: Face) -> Any:
    """The queue that most of Redisson's own tests begin with."""
    queue = face(delayed())
    for value, delay in ((3, LATER + 5), (1, LATER + 2), (2, LATER + 1)):
        queue.offer(value, delay)
    return queue


class TestAsRedissonDelayedQueueTestHasIt:
    def test_removed_element_is_not_contained_and_never_arrives(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue = face(delayed())
        queue.offer("1_1_1", LATER)
        queue.offer("1_1_2", LATER + 60)
        assert queue.contains("1_1_1")

        assert queue.remove("1_1_1")

        assert not queue.contains("1_1_1")
        make_due(client, queue_name)
        assert blocking().poll(20) == "1_1_2"
        assert len(blocking()) == 0

    def test_remove_all_removes_each_and_none_arrives(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue = face(delayed())
        queue.offer("1_1_1", LATER)
        queue.offer("1_1_2", LATER + 60)
        queue.offer("last", LATER + 120)

        assert queue.remove_all(["1_1_1", "1_1_2"])

        assert not queue.contains("1_1_1")
        assert not queue.contains("1_1_2")
        make_due(client, queue_name)
        assert blocking().poll(20) == "last"
        assert blocking().poll() is None

    def test_retain_all(self, three: Any) -> None:
        assert not three.retain_all([1, 2, 3])
        assert not three.retain_all([3, 1, 2, 8])
        assert three.read_all() == [3, 1, 2]

        assert three.retain_all([1, 2])
        assert three.read_all() == [1, 2]

    def test_read_all_is_in_the_order_of_the_offers(self, three: Any) -> None:
        assert three.read_all() == [3, 1, 2]

    def test_remove_all(self, three: Any) -> None:
        assert three.remove_all([1, 2])
        assert list(three) == [3]
        assert three.remove_all([3, 4])
        assert list(three) == []
        assert not three.remove_all([3, 4])

    def test_contains_all(self, three: Any) -> None:
        assert three.contains_all([1, 2])
        assert not three.contains_all([1, 2, 4])
        assert three.contains_all([1, 1])
        assert three.contains_all([1, 2, 1])
        assert three.contains_all([])

    def test_contains(self, three: Any) -> None:
        assert three.contains(1)
        assert not three.contains(4)

    def test_remove(self, three: Any) -> None:
        assert not three.remove(4)
        assert three.remove(3)
        assert list(three) == [1, 2]

    def test_peek(self, three: Any) -> None:
        assert three.peek() == 3
        assert three.peek() == 3

    def test_poll_last_and_offer_first_to(
        self, three: Any, blocking: MakeBlocking, queue_name: str
    ) -> None:
        deque = blocking(f"{queue_name}:deque2")
        for value in (6, 5, 4):
            deque.put(value)

        assert three.poll_last_and_offer_first_to(deque.name) == 2

        assert deque.read_all() == [2, 6, 5, 4]
        assert three.read_all() == [3, 1]

    def test_order_of_iteration_and_poll_is_that_of_the_offers(
        self, queue: Any, blocking: MakeBlocking
    ) -> None:
        for value, delay in (("1", 1), ("4", 4), ("3", 3), ("2", 2)):
            queue.offer(value, LATER + delay)

        assert list(queue) == ["1", "4", "3", "2"]
        assert [queue.poll() for _ in range(5)] == ["1", "4", "3", "2", None]
        assert blocking().poll() is None

    def test_poll_with_a_limit(self, queue: Any) -> None:
        for value in ("1", "2", "3", "4"):
            queue.offer(value, LATER)

        assert queue.poll(3) == ["1", "2", "3"]
        assert queue.poll(2) == ["4"]
        assert queue.poll(2) == []

    def test_elements_arrive_one_after_the_other_by_their_delay(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue, destination = face(delayed()), blocking()
        delays = (("1", 100), ("2", 500), ("4", 400), ("2", 200), ("3", 300))
        for value, delay in delays:
            queue.offer(value, LATER + delay)
        assert list(queue) == ["1", "2", "4", "2", "3"]

        make_due(client, queue_name)
        assert [destination.poll(20) for _ in delays] == ["1", "2", "3", "4", "2"]

        assert list(queue) == []
        assert destination.poll() is None


class TestOffer:
    @pytest.mark.parametrize(
        "delay",
        [
            timedelta(milliseconds=30),
            0.03,
            Decimal("0.03"),
            0,
            datetime(2001, 1, 1, tzinfo=UTC),
        ],
        ids=["timedelta", "float", "Decimal", "zero", "past"],
    )
    def test_every_kind_of_delay_arrives(
        self, delayed: Make, blocking: MakeBlocking, face: Face, delay: Any
    ) -> None:
        face(delayed()).offer("x", delay)

        assert blocking().poll(20) == "x"

    def test_start_time_is_the_servers_clock_plus_the_delay(
        self, delayed: Make, client: redis.Redis, queue_name: str
    ) -> None:
        before = now_ms(client)
        delayed().offer("x", LATER)
        after = now_ms(client) + 1

        ((_, score),) = client.zrange(
            QueueKeys.of(queue_name).timeout_set, 0, -1, withscores=True
        )
        assert before + LATER * 1000 <= score <= after + LATER * 1000
        assert score == int(score)

    def test_nothing_arrives_before_its_start_time(
        self, delayed: Make, blocking: MakeBlocking, client: redis.Redis
    ) -> None:
        queue, destination = delayed(), blocking()
        # By the server's clock, read before each offer: the start time is that or later.
        earliest = {}
        for delay_ms in range(20, 200, 3):
            earliest[delay_ms] = now_ms(client) + delay_ms
            queue.offer(delay_ms, delay_ms / 1000)

        while earliest:
            delay_ms = destination.poll(20)
            assert now_ms(client) >= earliest.pop(delay_ms)

    @pytest.mark.parametrize("delay", [-1, datetime(2030, 1, 1), float("nan"), None])
    def test_no_delay_is_an_error_and_nothing_is_stored(
        self, queue: Any, delay: Any
    ) -> None:
        with pytest.raises(InvalidDelay):
            queue.offer("x", delay)

        assert len(queue) == 0

    def test_value_that_the_codec_cannot_write_is_an_error_and_nothing_is_stored(
        self, queue: Any
    ) -> None:
        with pytest.raises(EncodeError):
            queue.offer(object(), LATER)

        assert len(queue) == 0

    def test_new_head_is_published_and_what_is_no_head_is_not(
        self, delayed: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = delayed()
        keys = QueueKeys.of(queue_name)
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe(keys.channel)
        wait_until(
            lambda: client.pubsub_numsub(keys.channel)[0][1] == 2,
            description="both subscribed",
        )

        for value, delay in (("b", LATER + 60), ("c", LATER + 120), ("a", LATER)):
            queue.offer(value, delay)
        client.publish(keys.channel, "end")

        heard: list[bytes] = []
        while heard[-1:] != [b"end"]:
            message = pubsub.get_message(timeout=5)
            if message is not None:
                heard.append(message["data"])
        scores = {
            unpack(frame).payload: b"%d" % score
            for frame, score in client.zrange(keys.timeout_set, 0, -1, withscores=True)
        }
        assert heard == [scores[b'"b"'], scores[b'"a"'], b"end"]
        pubsub.close()

    @pytest.mark.parametrize(
        ("frame_format", "written"),
        [
            (None, FrameFormat.BC0LC0),
            (FrameFormat.DLC0, FrameFormat.DLC0),
            ("3.16.6", FrameFormat.DLC0),
            ("3.27.2", FrameFormat.BC0LC0),
        ],
    )
    def test_frame_is_in_the_format_of_the_other_side(
        self,
        delayed: Make,
        client: redis.Redis,
        queue_name: str,
        frame_format: Any,
        written: FrameFormat,
    ) -> None:
        delayed(frame_format=frame_format).offer("x", LATER)

        (frame,), in_set = frames_of(client, queue_name)
        assert in_set == {frame}
        assert unpack(frame).format is written

    @pytest.mark.parametrize(
        ("frame_format", "said"),
        [
            (
                "x",
                r"frame_format='x': give 'dLc0' or 'Bc0Lc0', or the version .*'3\.16\.6'",
            ),
            (3.16, r"frame_format=3\.16: give 'dLc0' or"),
            ("3.21", "third number"),
        ],
    )
    def test_what_is_neither_a_format_nor_a_version_is_refused(
        self, queue_name: str, client: redis.Redis, frame_format: Any, said: str
    ) -> None:
        with pytest.raises(EncodeError, match=said):
            DelayedQueue(queue_name, connection=client, frame_format=frame_format)

    def test_equal_values_with_one_start_time_are_two_elements(
        self, queue: Any, blocking: MakeBlocking
    ) -> None:
        due = datetime.now(UTC) + timedelta(milliseconds=100)

        for _ in range(3):
            queue.offer("x", due)

        assert [blocking().poll(20) for _ in range(3)] == ["x", "x", "x"]
        assert blocking().poll() is None

    def test_element_is_kept_apart_from_one_that_has_its_frame_already(
        self, delayed: Make, client: redis.Redis, queue_name: str
    ) -> None:
        keys = DeliveryKeys.of(queue_name)
        queue = delayed()
        queue.offer("x", LATER)
        # As after a backup that held the queue, but not our counter.
        client.delete(keys.queue.delay_queue)
        client.hset(keys.counters, "number", 0)

        queue.offer("x", LATER)

        assert client.zcard(keys.queue.timeout_set) == 2

    def test_unlisted_offer_leaves_the_list_alone(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        delayed(insertion_list=False).offer("x", 0.05)

        assert frames_of(client, queue_name)[0] == []
        assert blocking().poll(20) == "x"

    @pytest.mark.parametrize("retries", [0, 10])
    def test_offer_whose_reply_is_lost_was_sent_once_and_says_so(
        self,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        face: Face,
        retries: int,
    ) -> None:
        with_retries = redis.Redis.from_url(
            proxy.url, retry=retry_of(retries), retry_on_timeout=True
        )
        with with_retries, DelayedQueue(queue_name, connection=with_retries) as made:
            queue = face(made)
            queue.offer("seen before", LATER)
            proxy.lose_reply_to(b'"lost"')

            with pytest.raises(MaybeScheduled, match="may be in the queue") as raised:
                queue.offer("lost", LATER)

            assert isinstance(raised.value.__cause__, redis.ConnectionError)
            assert queue.read_all() == ["seen before", "lost"]

    def test_offer_that_found_no_server_is_no_maybe(
        self, proxy: Proxy, queue_name: str, face: Face
    ) -> None:
        client = redis.Redis.from_url(proxy.url, retry=retry_of(0))
        with client, DelayedQueue(queue_name, connection=client) as made:
            proxy.is_refusing = True
            proxy.cut()

            with pytest.raises(redis.ConnectionError):
                face(made).offer("x", LATER)

    def test_offer_on_a_connection_that_died_unnoticed_is_made_on_a_new_one(
        self, proxy: Proxy, queue_name: str, face: Face
    ) -> None:
        client = redis.Redis.from_url(proxy.url, retry=retry_of(0))
        with client, DelayedQueue(queue_name, connection=client) as made:
            queue = face(made)
            queue.offer("a", LATER)
            proxy.cut()

            queue.offer("b", LATER)

            assert queue.read_all() == ["a", "b"]

    def test_offer_to_a_full_server_passes_its_error_on(
        self, private_server: Callable[..., Server], face: Face
    ) -> None:
        client = private_server().client()
        with DelayedQueue("q", connection=client) as made:
            queue = face(made)
            queue.offer("x", LATER)
            client.config_set("maxmemory", 1)

            with pytest.raises(redis.ResponseError, match=r"maxmemory|OOM"):
                queue.offer("y", LATER)

            assert queue.remove("x")
            assert len(queue) == 0


class TestWhatWaits:
    def test_without_a_list_it_is_seen_by_start_time(
        self, delayed: Make, face: Face
    ) -> None:
        queue = face(delayed(insertion_list=False))
        for value, delay in ((3, 300), (1, 200), (2, 100)):
            queue.offer(value, LATER + delay)

        assert queue.read_all() == [2, 1, 3]
        assert len(queue) == 3
        assert queue.peek() == 2
        assert queue.contains_all([1, 2, 3])
        assert not queue.contains(4)
        assert queue.poll(2) == [2, 1]
        assert queue.remove(3)
        assert queue.read_all() == []

    def test_without_a_list_the_last_is_the_one_with_the_latest_start_time(
        self, delayed: Make, face: Face, blocking: MakeBlocking, queue_name: str
    ) -> None:
        queue = face(delayed(insertion_list=False))
        for value, delay in ((3, 5), (1, 2)):
            queue.offer(value, LATER + delay)

        assert queue.poll_last_and_offer_first_to(f"{queue_name}:2") == 3
        assert blocking(f"{queue_name}:2").read_all() == [3]
        assert queue.read_all() == [1]

    def test_long_queue_is_read_in_full(
        self, delayed: Make, face: Face, insertion_list: bool
    ) -> None:
        waiting = delayed(insertion_list=insertion_list)
        fill(waiting, 1_234)
        queue = face(waiting)

        assert sorted(queue) == list(range(1_234))
        assert len(queue) == 1_234
        assert queue.contains_all(range(1_234))
        assert not queue.contains_all(range(1_235))

    def test_long_queue_is_removed_from_anywhere(
        self,
        delayed: Make,
        face: Face,
        insertion_list: bool,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        waiting = delayed(insertion_list=insertion_list)
        fill(waiting, 1_234)
        queue = face(waiting)

        for value in (0, 499, 500, 501, 999, 1_000, 1_233):
            assert queue.remove(value), value
            assert not queue.remove(value), value

        gone = set(range(3, 1_234, 3))
        assert queue.remove_all(gone)
        kept = {
            value
            for value in range(1_234)
            if value not in gone | {0, 499, 500, 501, 999, 1_000, 1_233}
        }
        assert set(queue) == kept
        assert_exact(client, queue_name, insertion_list)

    def test_long_queue_keeps_what_is_to_be_retained(
        self,
        delayed: Make,
        face: Face,
        insertion_list: bool,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        waiting = delayed(insertion_list=insertion_list)
        fill(waiting, 1_234)
        queue = face(waiting)

        assert queue.retain_all(range(1_000, 2_000))
        assert not queue.retain_all(range(1_000, 2_000))

        assert sorted(queue) == list(range(1_000, 1_234))
        assert_exact(client, queue_name, insertion_list)

    @pytest.mark.parametrize("retain", [False, True], ids=["remove", "retain"])
    @pytest.mark.parametrize(
        "together", [400, pytest.param(7, marks=pytest.mark.exhaustive)]
    )
    def test_a_few_of_a_long_list_are_taken_out_together(
        self,
        delayed: Make,
        face: Face,
        client: redis.Redis,
        queue_name: str,
        monkeypatch: pytest.MonkeyPatch,
        retain: bool,
        together: int,
    ) -> None:
        monkeypatch.setattr(queue_calls, "FAR", 100)
        monkeypatch.setattr(queue_calls, "TOGETHER", together)
        waiting = delayed()
        queue = face(waiting)
        java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
        fill(waiting, 1_900)
        java.offer(b"1", LATER * 1000)
        java.offer(b"-1", LATER * 1000)
        waiting.offer(1_900, LATER)
        offer_all(waiting, ((number, LATER) for number in range(1_901, 5_500)))
        # Nobody transfers it any more.
        lost = pack(os.urandom(8), b"600", FrameFormat.BC0LC0)
        keys = QueueKeys.of(queue_name)
        client.linsert(
            keys.delay_queue, "AFTER", client.lindex(keys.delay_queue, 1_000), lost
        )
        gone = {1, 600, 601, *range(3, 5_500, 61)}
        kept = [*(set(range(-1, 5_500)) - {0} - gone), 0]
        before = lrems(client)

        if retain:
            assert queue.retain_all(kept)
            assert not queue.retain_all(kept)
        else:
            assert queue.remove_all(gone)
            assert not queue.remove_all(gone)

        assert sorted(queue) == sorted(kept)
        assert_exact(client, queue_name, True)
        if together == 400:
            # Of eleven pages only those with what is not ours, or is not waiting, pay for themselves.
            assert lrems(client) - before <= 7

    def test_what_is_taken_by_others_meanwhile_is_not_taken_out_twice(
        self,
        delayed: Make,
        client: redis.Redis,
        queue_name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(queue_calls, "FAR", 10)
        queue = delayed()
        fill(queue, 700)
        other = delayed()
        withdraw, taken = queue_calls.withdraw, []

        def take_before(*args: Any, **options: Any) -> Any:
            if not taken:
                taken.extend([other.remove(300), other.remove(301)])
                other.poll(50)
            return withdraw(*args, **options)

        monkeypatch.setattr(queue_calls, "withdraw", take_before)

        assert queue.remove_all([300, 301, 302])

        assert taken == [True, True]
        assert sorted(queue) == sorted(set(range(50, 700)) - {300, 301, 302})
        assert_exact(client, queue_name, True)

    def test_long_queue_is_polled_to_the_end(
        self,
        delayed: Make,
        face: Face,
        insertion_list: bool,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        waiting = delayed(insertion_list=insertion_list)
        fill(waiting, 432)
        queue = face(waiting)

        assert len(queue.poll(250)) == 250
        assert len(queue.poll(1_000)) == 182
        assert queue.poll() is None
        assert_exact(client, queue_name, insertion_list)

    def test_retained_elements_alone_arrive(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue = face(delayed())
        queue.offer("dropped", LATER)
        queue.offer("kept", LATER + 60)

        queue.retain_all(["kept"])

        make_due(client, queue_name)
        assert blocking().poll(20) == "kept"
        assert blocking().poll() is None

    def test_retain_all_of_nothing_clears(self, three: Any) -> None:
        assert three.retain_all([])
        assert not three.retain_all([])
        assert len(three) == 0

    def test_remove_takes_the_first_of_equal_elements_only(self, queue: Any) -> None:
        for value in ("x", "y", "x"):
            queue.offer(value, LATER)

        assert queue.remove("x")
        assert queue.read_all() == ["y", "x"]

    def test_remove_whose_reply_is_lost_removed_one_of_two(
        self, proxy: Proxy, queue_name: str, face: Face
    ) -> None:
        client = redis.Redis.from_url(proxy.url)
        with client, DelayedQueue(queue_name, connection=client) as made:
            queue = face(made)
            queue.offer("twice", LATER)
            queue.offer("twice", LATER)
            queue.remove("other")
            proxy.lose_reply_to(b"twice")

            with pytest.raises(MaybeScheduled):
                queue.remove("twice")

            assert queue.read_all() == ["twice"]

    def test_poll_whose_reply_is_lost_returns_the_element_all_the_same(
        self, proxy: Proxy, queue_name: str, face: Face, insertion_list: bool
    ) -> None:
        client = redis.Redis.from_url(proxy.url)
        options: dict[str, Any] = {
            "connection": client,
            "insertion_list": insertion_list,
        }
        with client, DelayedQueue(queue_name, **options) as made:
            queue = face(made)
            for value in range(20):
                queue.offer(value, LATER)
            queue.poll()
            script, _ = bind_in(PACKAGES, "withdraw", DeliveryKeys.of(queue_name))
            lost = proxy.lose_reply_to(script.sha.encode())

            assert queue.poll(10) == list(range(1, 11))

            assert lost.is_set()
            assert queue.read_all() == list(range(11, 20))

    @pytest.mark.parametrize("reaches_server", [True, False])
    @pytest.mark.parametrize("is_late", [False, True])
    def test_poll_that_breaks_off_loses_no_element(
        self,
        delayed: Make,
        proxy: Proxy,
        queue_name: str,
        face: Face,
        insertion_list: bool,
        reaches_server: bool,
        is_late: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        values = [f"needle-{n}" for n in range(320)]
        with redis.Redis.from_url(proxy.url) as client:
            queue = face(delayed(connection=client, insertion_list=insertion_list))
            other = delayed(insertion_list=insertion_list)
            offer_all(other, ((value, LATER) for value in values))
            assert queue.poll(20) == values[:20]
            lose = proxy.lose_reply_to if reaches_server else proxy.lose
            lose(b"needle-250", refuse=True)

            assert queue.poll(300) == values[20:220]

            with pytest.raises(redis.ConnectionError):
                queue.poll(1)
            proxy.is_refusing = False
            if is_late:
                monkeypatch.setattr(delayed_module, "REPEAT_MS", -1)
            assert queue.poll() == values[220]
            assert queue.poll(200) == values[221:]
            assert queue.poll(1) == []
            assert len(other) == 0

    def test_poll_that_is_interrupted_keeps_what_it_took_for_the_next(
        self, delayed: Make, insertion_list: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = delayed(insertion_list=insertion_list)
        offer_all(queue, ((n, LATER) for n in range(250)))
        original = queue._withdraw

        def interrupted(page: Any, **options: Any) -> Any:
            if 230 in page.values:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return original(page, **options)

        monkeypatch.setattr(queue, "_withdraw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.poll(250)

        assert queue.poll(250) == list(range(250))

    def test_no_interrupt_of_a_poll_loses_what_an_earlier_one_left(
        self, delayed: Make, insertion_list: bool
    ) -> None:
        queue = delayed(insertion_list=insertion_list)
        for at in count():
            queue._left_over.clear()
            queue._left_over.extend([1, 2, 3])
            try:
                with interrupted_at(at):
                    taken = queue.poll(2)
            except KeyboardInterrupt:
                assert {*queue._left_over} == {1, 2, 3}
            else:
                break

        assert taken == [1, 2]
        assert [*queue._left_over] == [3]
        assert at > 5

    def test_concurrent_polls_share_the_elements(
        self, delayed: Make, insertion_list: bool, client: redis.Redis, queue_name: str
    ) -> None:
        queue = delayed(insertion_list=insertion_list)
        fill(queue, 600)
        taken: list[list[int]] = [[], [], []]

        def poll(mine: list[int]) -> None:
            while values := queue.poll(7):
                mine += values

        threads = [threading.Thread(target=poll, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(value for mine in taken for value in mine) == list(range(600))
        assert_exact(client, queue_name, insertion_list)

    def test_what_is_removed_behind_a_reader_does_not_hide_what_follows(
        self, delayed: Make, insertion_list: bool
    ) -> None:
        queue = delayed(insertion_list=insertion_list)
        fill(queue, 1_200)
        reader = iter(queue)
        seen = [next(reader) for _ in range(10)]

        queue.remove_all(range(0, 1_200, 4))
        seen += reader

        assert {value for value in range(1_200) if value % 4} <= set(seen)

    def test_clear_leaves_nothing_and_nothing_arrives(
        self,
        delayed: Make,
        blocking: MakeBlocking,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue = face(delayed())
        for value in range(10):
            queue.offer(value, LATER)

        queue.clear()
        queue.offer("after", LATER + 60)

        make_due(client, queue_name)
        assert blocking().poll(20) == "after"
        assert blocking().poll() is None
        assert frames_of(client, queue_name) == ([], set())

    def test_element_of_the_timeout_set_alone_is_seen_without_a_list_only(
        self, delayed: Make, client: redis.Redis, queue_name: str
    ) -> None:
        delayed(insertion_list=False).offer("x", LATER)

        assert len(delayed()) == 0
        assert not delayed().contains("x")
        assert not delayed().remove("x")
        assert delayed(insertion_list=False).remove("x")

    def test_removal_without_a_list_honours_one_that_is_there(
        self, delayed: Make, face: Face, client: redis.Redis, queue_name: str
    ) -> None:
        listed = delayed()
        unlisted = face(delayed(insertion_list=False))
        for value in range(100):
            listed.offer(value, LATER + value)
        java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
        java.offer(b'"java"', LATER * 1000)

        assert unlisted.remove(50)
        assert unlisted.remove_all([10, 20, 30])
        assert unlisted.remove("java")
        assert unlisted.poll(2) == [0, 1]

        assert_exact(client, queue_name, True)


class TestFramesOfOthers:
    @pytest.fixture(params=FrameFormat, ids=[item.value for item in FrameFormat])
    def java(
        self, request: pytest.FixtureRequest, client: redis.Redis, queue_name: str
    ) -> JavaQueue:
        return JavaQueue(client, queue_name, request.param)

    def test_java_and_we_see_one_queue(
        self,
        java: JavaQueue,
        delayed: Make,
        face: Face,
        client: redis.Redis,
        queue_name: str,
    ) -> None:
        queue = face(delayed())
        for value in range(0, 40, 2):
            java.offer(b"%d" % value, LATER * 1000)
            queue.offer(value + 1, LATER)

        assert queue.read_all() == list(range(40))
        assert queue.contains_all(range(40))
        assert queue.poll(3) == [0, 1, 2]
        assert queue.remove(10)
        assert queue.remove(11)
        assert queue.remove_all([20, 21])
        assert queue.retain_all(range(30))
        assert queue.read_all() == [
            value for value in range(3, 30) if value not in (10, 11, 20, 21)
        ]
        assert_exact(client, queue_name, True)

    def test_javas_elements_are_transferred(
        self, java: JavaQueue, delayed: Make, blocking: MakeBlocking
    ) -> None:
        delayed()

        java.offer(b'"x"', 50)

        assert blocking().poll(20) == "x"

    @pytest.mark.parametrize(
        "see",
        [
            lambda queue, value: queue.contains(value),
            lambda queue, value: queue.read_all() == [value],
            lambda queue, value: queue.peek() == value,
            lambda queue, value: queue.poll() == value,
            lambda queue, value: queue.remove(value),
            lambda queue, value: queue.remove_all([value]),
            lambda queue, value: not queue.retain_all([value]),
        ],
    )
    def test_frame_that_is_both_is_read_as_the_queues_format(
        self, java: JavaQueue, delayed: Make, face: Face, see: Any, insertion_list: bool
    ) -> None:
        queue, value = self.with_a_frame_that_is_both(java, delayed, insertion_list)

        assert see(face(queue), value)

    def test_frame_that_is_both_is_moved_as_the_queues_format(
        self,
        java: JavaQueue,
        delayed: Make,
        face: Face,
        insertion_list: bool,
        client: redis.Redis,
    ) -> None:
        queue, value = self.with_a_frame_that_is_both(java, delayed, insertion_list)
        target = f"{java.keys.name}:2"

        assert face(queue).poll_last_and_offer_first_to(target) == value

        assert client.lrange(target, 0, -1) == [value]

    def test_frame_that_is_both_is_transferred_as_the_queues_format(
        self, java: JavaQueue, delayed: Make, client: redis.Redis
    ) -> None:
        _, value = self.with_a_frame_that_is_both(java, delayed, True, delay_ms=50)
        destination = java.keys.destination
        wait_until(lambda: client.exists(destination), description="it arrives")

        assert client.lrange(destination, 0, -1) == [value]

    def with_a_frame_that_is_both(
        self,
        java: JavaQueue,
        delayed: Make,
        insertion_list: bool,
        delay_ms: int = LATER * 1000,
    ) -> tuple[DelayedQueue, bytes]:
        """Offer seventeen bytes: nothing in one format, one zero byte in the other; return the queue and which."""
        is_old = java.frame_format is FrameFormat.DLC0
        value, random_id = (b"\0", b"\x08abcdefg") if is_old else (b"", b"abcdefg\x01")
        frame = java.offer(value, delay_ms, random_id=random_id)
        other = next(each for each in FrameFormat if each is not java.frame_format)
        assert unpack(frame, prefer=other).payload != value
        queue = delayed(
            codec="ByteArrayCodec",
            frame_format=java.frame_format,
            insertion_list=insertion_list,
        )
        return queue, value

    @pytest.mark.parametrize(
        "junk",
        [b"\0", b"short", b"\x08" + bytes(16) + b"rest"],
        ids=["tombstone", "short", "long"],
    )
    def test_what_is_no_frame_stops_nothing_and_stays(
        self,
        junk: bytes,
        java: JavaQueue,
        delayed: Make,
        face: Face,
        client: redis.Redis,
    ) -> None:
        queue = face(delayed())
        client.zadd(java.keys.timeout_set, {junk: now_ms(client) + LATER * 1000})
        client.rpush(java.keys.delay_queue, junk)
        for value in range(3):
            queue.offer(value, LATER)
        client.rpush(java.keys.delay_queue, junk)

        assert queue.read_all() == [0, 1, 2]
        assert queue.peek() == 0
        assert queue.contains(2)
        assert queue.poll() == 0
        assert queue.poll_last_and_offer_first_to(f"{java.keys.name}:2") == 2
        assert not queue.retain_all([1])
        assert queue.remove(1)
        assert queue.poll(20) == []
        assert client.lrange(java.keys.delay_queue, 0, -1) == [junk, junk]
        assert client.zrange(java.keys.timeout_set, 0, -1) == [junk]

    def test_payload_that_the_codec_cannot_read_is_an_error_with_its_bytes_and_stays(
        self, java: JavaQueue, delayed: Make, face: Face
    ) -> None:
        queue = face(delayed())
        queue.offer("first", LATER)
        java.offer(b"\xff\xfe no JSON", LATER * 1000)

        assert queue.peek() == "first"
        assert queue.poll(20) == ["first"]
        for read in (queue.peek, queue.poll, queue.read_all):
            with pytest.raises(DecodeError) as raised:
                read()
            assert raised.value.data == b"\xff\xfe no JSON"
        assert len(queue) == 1
        queue.clear()


class TestJobsAmongTheElements:
    """Whoever takes a job's frame out takes what we know of the job along."""

    @pytest.fixture
    def keys(self, queue_name: str) -> DeliveryKeys:
        return DeliveryKeys.of(queue_name)

    @pytest.fixture
    def token(self, client: redis.Redis, keys: DeliveryKeys) -> str:
        token = store_calls.new_token()
        job = store_calls.NewJob(token, f"+{LATER}000", "ekey", payload(token))
        run(client, store_calls.schedule(store_calls.Target(keys), [job]))
        return token

    @pytest.mark.parametrize(
        "take_out",
        [
            lambda queue, token: queue.remove(payload(token)),
            lambda queue, token: queue.remove_all([payload(token)]),
            lambda queue, token: queue.retain_all([b"other"]),
            lambda queue, token: queue.poll(),
            lambda queue, token: queue.poll_last_and_offer_first_to(
                f"{queue.name}:other"
            ),
            lambda queue, token: queue.clear(),
        ],
        ids=["remove", "remove_all", "retain_all", "poll", "poll_last", "clear"],
    )
    def test_locator_and_unique_key_go_with_the_frame(
        self,
        take_out: Callable[[DelayedQueue, str], object],
        delayed: Make,
        client: redis.Redis,
        keys: DeliveryKeys,
        token: str,
        insertion_list: bool,
    ) -> None:
        queue = delayed(codec="ByteArrayCodec", insertion_list=insertion_list)
        assert client.hlen(keys.locators) == client.hlen(keys.unique) == 1

        take_out(queue, token)

        assert client.hlen(keys.locators) == client.hlen(keys.unique) == 0
        found = run(client, queue_reads.inspect(keys, token))
        assert found.state in (states.State.CANCELLED, states.State.TAKEN)

    def test_copy_that_somebody_offered_is_not_the_job(
        self, delayed: Make, client: redis.Redis, keys: DeliveryKeys, token: str
    ) -> None:
        queue = delayed(codec="ByteArrayCodec", insertion_list=False)
        queue.offer(payload(token), LATER - 60)

        assert queue.poll() == payload(token)

        found = run(client, queue_reads.inspect(keys, token))
        assert found.state is states.State.SCHEDULED

    def test_clear_of_many_jobs_forgets_them_all(
        self, delayed: Make, face: Face, client: redis.Redis, keys: DeliveryKeys
    ) -> None:
        for _ in range(3):
            jobs = [new_job(f"ekey{os.urandom(4).hex()}") for _ in range(450)]
            run(client, store_calls.schedule(store_calls.Target(keys), jobs))

        face(delayed()).clear()

        assert client.exists(keys.locators, keys.unique, keys.queue.timeout_set) == 0
        assert client.exists(keys.queue.delay_queue, keys.queue.own("cleared")) == 0

    def test_clear_goes_on_where_another_was_interrupted(
        self, delayed: Make, client: redis.Redis, keys: DeliveryKeys
    ) -> None:
        first = [new_job(f"efirst{number}") for number in range(500)]
        second = [new_job(f"esecond{number}") for number in range(500)]
        third = [new_job(f"ethird{number}") for number in range(500)]
        run(client, store_calls.schedule(store_calls.Target(keys), first))
        run(client, store_calls.schedule(store_calls.Target(keys), second))
        cleared = run(client, queue_calls.clear(keys))
        assert cleared.left == 500
        run(client, store_calls.schedule(store_calls.Target(keys), third))

        delayed().clear()

        assert client.exists(keys.locators, keys.unique, keys.queue.own("cleared")) == 0
        assert frames_of(client, keys.queue.name) == ([], set())


class TestTheObject:
    def test_transfers_from_its_making_to_its_destruction(
        self, client: redis.Redis, queue_name: str, blocking: MakeBlocking
    ) -> None:
        java = JavaQueue(client, queue_name, FrameFormat.BC0LC0)
        queue = DelayedQueue(queue_name, connection=client)
        java.offer(b"1", 20)
        assert blocking().poll(20) == 1

        queue.destroy()
        queue.destroy()
        java.offer(b"2", 20)
        assert blocking().poll(0.1) is None

        with DelayedQueue(queue_name, connection=client):
            assert blocking().poll(20) == 2

    def test_two_objects_transfer_until_the_second_is_destroyed(
        self, delayed: Make, blocking: MakeBlocking
    ) -> None:
        first, second = delayed(), delayed()

        first.destroy()
        second.offer("x", 0.02)

        assert blocking().poll(20) == "x"

    def test_destroyed_object_can_be_used_and_does_not_transfer(
        self, delayed: Make, blocking: MakeBlocking
    ) -> None:
        queue = delayed()
        queue.destroy()

        queue.offer("x", 0)

        assert blocking().poll(0.1) is None
        assert queue.read_all() == ["x"]

    def test_forked_child_transfers_with_its_first_use(
        self, delayed: Make, queue_name: str, client: redis.Redis, server: Server
    ) -> None:
        queue = delayed()
        child = os.fork()
        if child == 0:
            taken = None
            try:
                queue.offer("of the child", 0.02)
                with server.client() as own:
                    taken = own.blpop([queue_name], 20)
            finally:
                os._exit(0 if taken is not None else 1)

        # The parent's own thread may have been first; what counts is that the child's is not needed.
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

    def test_url_is_a_connection(
        self, server: Server, queue_name: str, face: Face
    ) -> None:
        with DelayedQueue(queue_name, connection=server.socket_url) as queue:
            face(queue).offer("x", LATER)

            assert face(queue).read_all() == ["x"]

    def test_decoding_client_is_a_connection(
        self, server: Server, queue_name: str, face: Face
    ) -> None:
        client = server.client(decode_responses=True)
        with DelayedQueue(
            queue_name, connection=client, codec="ByteArrayCodec"
        ) as queue:
            face(queue).offer(b"\xff", LATER)

            assert face(queue).read_all() == [b"\xff"]

    @pytest.mark.parametrize("connection", [object(), 5, b"redis://"])
    def test_what_is_no_connection_is_refused(self, connection: Any) -> None:
        with pytest.raises(InvalidSettings, match="connection has to be"):
            DelayedQueue("q", connection=connection)

    @pytest.mark.parametrize("name", ["", "x}y", None])
    def test_what_is_no_name_is_refused(self, name: Any, client: redis.Redis) -> None:
        with pytest.raises(EncodeError):
            DelayedQueue(name, connection=client)

    def test_codec_is_that_of_the_queue(
        self, delayed: Make, client: redis.Redis, queue_name: str
    ) -> None:
        delayed(codec="StringCodec").offer("no JSON", LATER)

        (frame,), _ = frames_of(client, queue_name)
        assert unpack(frame).payload == b"no JSON"

    def test_is_true_though_empty_and_prints_its_name(
        self, delayed: Make, queue_name: str
    ) -> None:
        assert delayed()
        assert repr(delayed()) == f"<DelayedQueue {queue_name!r}>"
        assert "x" not in delayed()


@contextmanager
def interrupted_at(point: int) -> Iterator[None]:
    """Interrupt what a queue does in this thread, at one of the points at which a signal handler can run."""
    left = point

    def look(frame: Any, event: str, arg: object) -> None:
        nonlocal left
        is_point = event in ("call", "c_return")
        if is_point and frame.f_globals["__name__"].startswith("django_delayq.queues."):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def fill(queue: Any, number: int) -> None:
    """Offer the numbers below this one, with start times in random order."""
    delays = [LATER + each for each in range(number)]
    random.Random(number).shuffle(delays)
    offer_all(queue, enumerate(delays))


def offer_all(queue: Any, offers: Iterable[tuple[Any, Any]]) -> None:
    """Offer elements as `offer` does, many in one write."""
    offer = steps_of(DelayedQueue.offer)
    commands = [once.call for each in offers for once in offer(queue, *each)]
    for made in run_all(queue._clients.shared(), commands):
        assert not isinstance(made, Exception), made


def lrems(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_lrem", {"calls": 0})["calls"])


def assert_exact(client: redis.Redis, name: str, insertion_list: bool) -> None:
    """The list holds what the timeout set holds, each once, in ascending order of our numbers; or nothing."""
    listed, waiting = frames_of(client, name)
    if not insertion_list:
        assert listed == []
        return
    assert len(listed) == len(waiting)
    assert set(listed) == waiting


def new_job(unique: str) -> store_calls.NewJob:
    token = store_calls.new_token()
    return store_calls.NewJob(token, f"+{LATER}000", unique, payload(token))


def retry_of(count: int) -> Any:
    return redis.retry.Retry(redis.backoff.NoBackoff(), count)


def test_frames_of_this_file_are_redissons() -> None:
    # The helper writes them; if it were wrong, so would be what is proved with it.
    assert (
        pack(bytes(8), b"1", FrameFormat.BC0LC0)
        == b"\x08" + bytes(8) + b"\x01" + bytes(7) + b"1"
    )


@pytest.mark.parametrize("limit", ["2", 2.5, True, -1, [1]])
def test_limit_that_is_no_number_of_elements_is_refused(
    server: Server, queue_name: str, limit: Any
) -> None:
    with (
        DelayedQueue(queue_name, connection=server.socket_url) as delayed,
        BlockingQueue(queue_name, connection=server.socket_url) as blocking,
    ):
        delayed.offer("x", LATER)
        for take in (delayed.poll, blocking.drain_to):
            with pytest.raises(ValueError, match="a whole number, 0 or more; got"):
                take(limit)
        assert len(delayed) == 1
