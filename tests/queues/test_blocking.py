import asyncio
import json
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import queue_reads
from django_delayq.core import store as store_calls
from django_delayq.core.claim import Mode
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import PACKAGES
from django_delayq.core.states import State
from django_delayq.exceptions import (
    DecodeError,
    EncodeError,
    InvalidDelay,
    MaybeScheduled,
)
from django_delayq.queues import queue_calls
from django_delayq.queues.blocking_queue import OVERTAKEN_MS, BlockingQueue
from django_delayq.queues.taker import Batch, Taker
from django_delayq.transport import run as running
from django_delayq.transport.bind import bind_in
from django_delayq.transport.performed import steps_of
from django_delayq.transport.run import run
from django_delayq.transport.steps import Pause
from django_delayq.waiting.lists import WaitForAny
from tests.clock import at
from tests.polling import takes_less_than, wait_until
from tests.queues.proxy import Proxy
from tests.servers import Server

Make = Callable[..., BlockingQueue]
Face = Callable[[Any], Any]


@pytest.fixture
def queue(blocking: Make, face: Face) -> Any:
    return face(blocking())


@pytest.fixture
def keys(queue_name: str) -> DeliveryKeys:
    return DeliveryKeys.of(queue_name)


class TestLikeRedissons:
    def test_elements_come_out_in_the_order_they_were_put_in(self, queue: Any) -> None:
        for value in (1, "two", [3], None, {"five": 5.5}):
            assert queue.offer(value)
        queue.put(6)

        taken = [queue.take() for _ in range(6)]
        assert taken == [1, "two", [3], None, {"five": 5.5}, 6]
        assert queue.poll() is None

    def test_java_sees_what_we_put_and_we_see_what_java_puts(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        queue.put("ours")
        client.rpush(queue_name, b'"javas"')

        assert client.lpop(queue_name) == b'"ours"'
        assert queue.take() == "javas"

    def test_what_waits_is_looked_at_and_stays(self, queue: Any) -> None:
        assert queue.peek() is None
        for value in ("a", "b", "a"):
            queue.put(value)

        assert queue.peek() == "a"
        assert len(queue) == 3
        assert queue.contains("b")
        assert not queue.contains("c")
        assert queue.read_all() == ["a", "b", "a"]

    def test_remove_takes_the_first_that_is_equal(self, queue: Any) -> None:
        for value in ("a", "b", "a"):
            queue.put(value)

        assert queue.remove("a")
        assert not queue.remove("c")

        assert queue.read_all() == ["b", "a"]

    def test_clear_leaves_nothing(self, queue: Any) -> None:
        queue.put("a")

        queue.clear()

        assert len(queue) == 0
        assert queue.poll() is None

    def test_drain_takes_what_is_there_up_to_the_limit(self, queue: Any) -> None:
        for value in range(1_300):
            queue.put(value)

        assert queue.drain_to(3) == [0, 1, 2]
        assert queue.drain_to(1_000) == list(range(3, 1_003))
        assert queue.drain_to(1_000) == list(range(1_003, 1_300))
        assert queue.drain_to(1_000) == []
        assert queue.drain_to(0) == []

    def test_read_all_reads_more_than_a_page(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        client.rpush(queue_name, *range(1_234))

        assert queue.read_all() == list(range(1_234))

    def test_drain_to_takes_large_payloads_in_several_claims(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        client.rpush(queue_name, *(json.dumps("x" * 300_000) for _ in range(9)))

        assert len(queue.drain_to(100)) == 9

    def test_value_that_the_codec_cannot_write_is_an_error(self, queue: Any) -> None:
        with pytest.raises(EncodeError):
            queue.put(object())

    def test_nothing_is_left_of_what_was_taken(
        self, queue: Any, client: redis.Redis, keys: DeliveryKeys
    ) -> None:
        for value in range(20):
            queue.put(value)
        queue.take()
        queue.poll(1)
        queue.drain_to(18)

        assert client.exists(keys.leases, keys.headers, keys.payloads) == 0
        assert client.exists(keys.claims, keys.queue.destination) == 0


class TestWaiting:
    def test_take_returns_an_element_that_comes_later(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        def take() -> None:
            pusher = threading.Timer(0.1, client.rpush, [queue_name, b'"x"'])
            pusher.start()
            assert queue.take() == "x"
            pusher.join()

        assert takes_less_than(1, take)

    def test_take_waits_longer_than_one_blmove(
        self,
        queue: Any,
        client: redis.Redis,
        queue_name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("django_delayq.waiting.lists.BLOCK_MS", 20)
        pusher = threading.Timer(0.2, client.rpush, [queue_name, b'"x"'])
        pusher.start()

        assert queue.take() == "x"

        pusher.join()

    @pytest.mark.parametrize(
        "timeout", [0.15, timedelta(milliseconds=150)], ids=["seconds", "timedelta"]
    )
    def test_poll_waits_for_fractions_of_a_second(
        self, queue: Any, timeout: Any
    ) -> None:
        queue.poll()

        def poll() -> None:
            begun = time.monotonic()
            assert queue.poll(timeout) is None
            assert time.monotonic() - begun > 0.145

        assert takes_less_than(0.6, poll)

    def test_poll_without_a_timeout_does_not_wait(self, queue: Any) -> None:
        queue.poll()

        def poll() -> None:
            assert queue.poll() is None
            assert queue.poll(0) is None
            assert queue.poll(-1) is None

        assert takes_less_than(0.2, poll)

    @pytest.mark.parametrize("timeout", [None, "1", True, float("nan")])
    def test_what_is_no_timeout_is_refused(self, blocking: Make, timeout: Any) -> None:
        with pytest.raises(InvalidDelay, match="timeout"):
            blocking().poll(timeout)

    def test_idle_wait_asks_the_server_a_few_times_only(
        self, private_server: Callable[..., Server], face: Face
    ) -> None:
        client = private_server().client()
        with BlockingQueue("q", connection=client) as queue:
            face(queue).poll(0.01)
            before = commands(client)

            face(queue).poll(2.5)

            assert commands(client) - before <= 8

    def test_many_who_wait_get_one_each(
        self, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = blocking()
        taken: list[Any] = []
        threads = [
            threading.Thread(target=lambda: taken.append(queue.poll(30)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_until(
            lambda: client.info("clients")["blocked_clients"] >= 8,
            description="all wait",
        )

        client.rpush(queue_name, *range(8))

        for thread in threads:
            thread.join()
        assert sorted(taken) == list(range(8))

    def test_we_and_a_blocked_java_client_get_one_each(
        self, blocking: Make, client: redis.Redis, server: Server, queue_name: str
    ) -> None:
        got: list[Any] = []
        java = server.client()
        threads = [
            threading.Thread(target=lambda: got.append(blocking().poll(30))),
            threading.Thread(
                target=lambda: got.append(json.loads(java.blpop([queue_name], 30)[1]))
            ),
        ]
        for thread in threads:
            thread.start()
        wait_until(
            lambda: client.info("clients")["blocked_clients"] >= 2,
            description="both wait",
        )

        client.rpush(queue_name, 1)
        client.rpush(queue_name, 2)

        for thread in threads:
            thread.join()
        assert sorted(got) == [1, 2]

    def test_poll_from_any_returns_the_first_that_comes_to_any(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        names = [f"{queue_name}:{number}" for number in range(3)]
        for name in (*names, queue_name):

            def poll(name: str = name) -> None:
                pusher = threading.Timer(0.05, client.rpush, [name, json.dumps(name)])
                pusher.start()
                assert queue.poll_from_any(20, *names) == name
                pusher.join()

            assert takes_less_than(1, poll)

    def test_poll_from_any_prefers_its_own_and_then_the_earlier_name(
        self, queue: Any, client: redis.Redis, queue_name: str
    ) -> None:
        names = [f"{queue_name}:{number}" for number in range(3)]
        for name in (names[2], names[0], queue_name, names[1]):
            client.rpush(name, json.dumps(name))

        taken = [queue.poll_from_any(20, *names) for _ in range(4)]

        assert taken == [queue_name, *names]
        assert queue.poll_from_any(0.05, *names) is None

    def test_names_of_which_nothing_is_left_over_are_not_kept(
        self, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = blocking()
        for number in range(3):
            client.rpush(f"{queue_name}:{number}", number)
            assert queue.poll_from_any(20, f"{queue_name}:{number}") == number

        assert len(queue._taker._left_over) == 0

    def test_full_server_is_waited_on_without_blmove(
        self,
        private_server: Callable[..., Server],
        face: Face,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("django_delayq.waiting.lists.BACKOFF_MS", 50)
        client = private_server().client()
        client.rpush("q", 1)
        client.config_set("maxmemory", 1)
        with BlockingQueue("q", connection=client) as made:
            queue = face(made)

            assert queue.take() == 1
            assert queue.poll(0.2) is None

            def make_room_and_push() -> None:
                client.config_set("maxmemory", 0)
                client.rpush("q", 2)

            pusher = threading.Timer(0.1, make_room_and_push)
            pusher.start()
            assert queue.poll(20) == 2
            pusher.join()


class TestLeases:
    def test_element_of_a_consumer_that_died_comes_again_when_its_lease_is_over(
        self,
        blocking: Make,
        face: Face,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
    ) -> None:
        queue = face(blocking(lease=0.3))

        def die() -> None:
            client.rpush(queue_name, 1)
            begun = time.monotonic()
            died = run(client, claim(keys, lease_ms=300))
            assert [job.payload for job in died.jobs] == [b"1"]
            assert queue.poll(20) == 1
            assert time.monotonic() - begun >= 0.299

        assert takes_less_than(2, die)

    def test_who_waits_looks_often_enough_to_know_of_no_gap(
        self,
        blocking: Make,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
    ) -> None:
        """Else what a dead consumer had would be spared, as after an outage."""
        client.rpush(queue_name, 1)
        run(client, claim(keys, lease_ms=2_000))

        steps = blocking(lease=2)._take([keys], math.inf)
        request = next(steps)
        while not isinstance(request, WaitForAny):
            request = steps.send(run(client, request))

        assert 0 < request.wait_ms <= 250
        steps.close()

    def test_element_of_a_consumer_that_died_holds_up_no_other(
        self, queue: Any, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1, 2)
        run(client, claim(keys, lease_ms=60_000))

        assert queue.take() == 2
        assert queue.poll() is None

    def test_confirmation_after_the_lease_counts_where_nobody_else_came(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1)
        claimed = run(client, at(10**15, claim(keys, lease_ms=1_000)))
        later_us = 10**15 + 2_000_000

        assert run(client, at(later_us, confirm(keys, claimed))) == "1"
        assert run(client, at(later_us, confirm(keys, claimed))) == "1"

        assert run(client, at(later_us, claim(keys))).jobs == []

    def test_repeated_confirmation_says_the_same(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1)
        claimed = run(client, at(10**15, claim(keys, lease_ms=1_000)))

        first = run(client, at(10**15, confirm(keys, claimed)))
        again = run(client, at(10**15 + 20000000, confirm(keys, claimed)))

        assert first == again == "1"

    @pytest.mark.parametrize("step_ms", [0, -3_600_000, 3_600_000])
    def test_confirmation_of_another_who_came_after_the_lease_is_told_apart(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str, step_ms: int
    ) -> None:
        """Whatever the clock did between its claim and its confirmation."""
        client.rpush(queue_name, 1)
        first = run(client, at(10**15, claim(keys, lease_ms=1_000)))
        later_us = wait_out(client, keys, 10**15)
        second = run(client, at(later_us, claim(keys, lease_ms=1_000)))
        assert second.jobs[0].token == first.jobs[0].token

        stepped_us = later_us + step_ms * 1000
        assert run(client, at(stepped_us, confirm(keys, second))) == "1"

        for claimed, expected in ((first, "0"), (second, "1")):
            repeated = at(stepped_us, confirm(keys, claimed))
            assert run(client, repeated) == expected
        undo = queue_calls.untake(keys, first.jobs, owner=b"o" * 8)
        assert run(client, undo) == 0

    def test_put_back_restores_the_order_and_can_be_repeated(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1, 2, 3, 4)
        claimed = run(client, claim(keys, limit=3, lease_ms=60_000))
        undo = queue_calls.untake(keys, claimed.jobs, owner=b"o" * 8)

        assert run(client, undo) == 3
        assert run(client, undo) == 0

        assert client.lrange(queue_name, 0, -1) == [b"1", b"2", b"3", b"4"]
        assert client.exists(keys.leases, keys.headers, keys.payloads, keys.claims) == 0

    def test_put_back_undoes_a_confirmation(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1, 2)
        claimed = run(client, claim(keys, limit=2, lease_ms=60_000))
        run(client, confirm(keys, claimed))
        undo = queue_calls.untake(keys, claimed.jobs, owner=b"o" * 8)

        assert run(client, undo) == 2
        assert run(client, undo) == 0

        assert client.lrange(queue_name, 0, -1) == [b"1", b"2"]
        assert client.hget(keys.counters, "taken") == b"0"

    def test_put_back_leaves_alone_what_is_anothers_by_now(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1)
        first = run(client, at(10**15, claim(keys, lease_ms=1_000)))
        later_us = wait_out(client, keys, 10**15)
        run(client, at(later_us, claim(keys, lease_ms=1_000)))

        undo = queue_calls.untake(keys, first.jobs, owner=b"o" * 8)

        assert run(client, undo) == 0
        assert client.zcard(keys.leases) == 1

    def test_element_with_a_history_keeps_it_when_put_back_and_can_be_taken_at_once(
        self, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, 1)
        run(client, at(10**15, claim(keys, lease_ms=1_000)))
        later_us = wait_out(client, keys, 10**15)
        again = run(client, at(later_us, claim(keys, lease_ms=1_000)))
        assert again.jobs[0].kills == 1

        undo = at(later_us, queue_calls.untake(keys, again.jobs, owner=b"o" * 8))
        run(client, undo)

        third = run(client, at(later_us, claim(keys, lease_ms=1_000)))
        assert [(job.payload, job.kills) for job in third.jobs] == [(b"1", 2)]


class TestBadPayloads:
    def test_it_goes_to_the_quarantine_with_the_reason_and_the_next_one_is_taken(
        self, queue: Any, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, b"\xff no JSON", b'"good"')

        with pytest.raises(DecodeError) as raised:
            queue.take()

        assert raised.value.data == b"\xff no JSON"
        assert client.exists(keys.claims) == 0
        assert queue.take() == "good"
        page = run(client, queue_reads.page(keys, State.QUARANTINED))
        assert [row.payload for row in page.rows] == [b"\xff no JSON"]
        assert page.rows[0].attempts == 0
        assert "DecodeError" in json.loads(page.rows[0].error)["error"]

    def test_reason_says_which_codec_it_looks_like(
        self,
        blocking: Make,
        face: Face,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
    ) -> None:
        client.rpush(queue_name, b"\x03hell\xef", b"good")
        queue = face(blocking(codec="StringCodec"))

        with pytest.raises(DecodeError, match="looks like Kryo5Codec"):
            queue.peek()
        with pytest.raises(DecodeError, match="looks like Kryo5Codec"):
            queue.take()

        assert queue.take() == "good"
        (row,) = run(client, queue_reads.page(keys, State.QUARANTINED)).rows
        reason = json.loads(row.error)["error"]
        assert f"see DELAYQ['QUEUES']['{queue_name}']['CODEC']" in reason

    def test_drain_leaves_it_out(
        self,
        queue: Any,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        client.rpush(queue_name, b"1", b"\xff", b"2", b"nope")

        assert queue.drain_to(10) == [1, 2]

        assert client.zcard(keys.quarantine) == 2
        assert client.exists(keys.leases) == 0
        assert "quarantine" in caplog.text

    def test_codec_of_the_users_own_may_fail_in_its_own_way(
        self,
        blocking: Make,
        face: Face,
        client: redis.Redis,
        keys: DeliveryKeys,
        queue_name: str,
    ) -> None:
        class Strict:
            name = "Strict"

            def encode(self, value: object) -> bytes:
                return str(value).encode()

            def decode(self, payload: bytes) -> object:
                return int(payload)

        client.rpush(queue_name, b"no number", b"5")
        queue = face(blocking(codec=Strict()))

        with pytest.raises(DecodeError) as raised:
            queue.take()

        assert isinstance(raised.value.__cause__, ValueError)
        assert queue.take() == 5
        assert client.zcard(keys.quarantine) == 1

    def test_replayed_payload_is_not_stuck_for_who_can_read_it(
        self, blocking: Make, client: redis.Redis, keys: DeliveryKeys, queue_name: str
    ) -> None:
        client.rpush(queue_name, b"text")
        with pytest.raises(DecodeError):
            blocking().take()
        (row,) = run(client, queue_reads.page(keys, State.QUARANTINED)).rows

        run(client, change_calls.replay(keys, [row.token], state=State.QUARANTINED))

        claimed = wait_until(
            lambda: run(client, claim(keys, mode=Mode.DIRECT)).jobs,
            description="claimed again",
        )
        assert [job.payload for job in claimed] == [b"text"]


class TestLostReplies:
    """Every call of a take can lose its reply; the element is returned once all the same."""

    @pytest.fixture(params=[0, 3], ids=["no-retries", "retries"])
    def through_proxy(self, proxy: Proxy, request: pytest.FixtureRequest) -> Any:
        client = redis.Redis.from_url(
            proxy.url,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), request.param),
        )
        yield client
        client.close()

    @pytest.mark.parametrize("lost", ["claim", "confirm"])
    @pytest.mark.parametrize("reaches_server", [True, False], ids=["reply", "request"])
    def test_element_is_returned_once(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        face: Face,
        lost: str,
        reaches_server: bool,
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy, lease=2) as made:
            queue = face(made)
            client.rpush(queue_name, *range(10))
            assert queue.take() == 0
            lose = proxy.lose_reply_to if reaches_server else proxy.lose
            struck = lose(sha_of(lost))

            taken = [queue.take() for _ in range(9)]

            assert struck.is_set()
            assert sorted(taken) == list(range(1, 10))
            assert queue.poll() is None

    @pytest.mark.parametrize("reaches_server", [True, False], ids=["reply", "request"])
    def test_element_whose_confirmation_stayed_open_is_settled_by_the_next_call(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        face: Face,
        reaches_server: bool,
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy, lease=0.5) as made:
            queue = face(made)
            client.rpush(queue_name, 0, 1)
            assert queue.take() == 0
            lose = proxy.lose_reply_to if reaches_server else proxy.lose
            lose(sha_of("confirm"), refuse=True)

            with pytest.raises(redis.ConnectionError):
                queue.take()
            proxy.is_refusing = False
            # With the request lost, the element is whoever's comes first after the lease; here that is us again.
            assert queue.poll(20) == 1
            assert queue.poll(1) is None

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_drained_elements_whose_confirmation_stayed_open_are_all_returned_later(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        interrupted: bool,
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy, lease=0.5) as queue:
            client.rpush(queue_name, *range(6))
            assert queue.take() == 0
            proxy.lose_reply_to(sha_of("confirm"), refuse=True)
            with pytest.raises(redis.ConnectionError):
                queue.drain_to(4)
            proxy.is_refusing = False

            if interrupted:
                steps = steps_of(BlockingQueue.drain_to)(queue, 10)
                with pytest.raises(KeyboardInterrupt):
                    interrupt_after(3, through_proxy, steps)

            taken = [queue.poll(20) for _ in range(2)] + queue.drain_to(1)
            taken += queue.drain_to(10)
            while len(taken) < 5:
                taken.append(queue.poll(20))
            assert sorted(taken) == [1, 2, 3, 4, 5]
            assert queue.poll(0.6) is None

    def test_element_whose_confirmation_never_came_and_that_another_took_is_not_ours(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        face: Face,
        blocking: Make,
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy, lease=0.5) as made:
            queue = face(made)
            client.rpush(queue_name, 0, 1)
            assert queue.take() == 0
            proxy.lose(sha_of("confirm"), refuse=True)

            with pytest.raises(redis.ConnectionError):
                queue.take()
            assert blocking().poll(20) == 1
            proxy.is_refusing = False

            assert queue.poll(0.6) is None

    def test_wait_on_a_connection_that_is_dead_and_open_goes_on_with_another(
        self, proxy: Proxy, client: redis.Redis, queue_name: str, face: Face
    ) -> None:
        patient = redis.Redis.from_url(proxy.url, socket_timeout=1)
        with patient, BlockingQueue(queue_name, connection=patient, lease=2) as made:
            queue = face(made)
            queue.poll(0.01)
            freezer = threading.Timer(0.1, proxy.freeze)
            freezer.start()
            pusher = threading.Timer(0.3, client.rpush, [queue_name, 1])
            pusher.start()

            assert queue.poll(60) == 1

            freezer.join()
            pusher.join()

    def test_offer_after_the_server_has_closed_the_connection_is_stored(
        self, server: Server, client: redis.Redis, queue_name: str, face: Face
    ) -> None:
        # By TCP: there, servers may tell of their maintenance.
        url = f"{server.url}?client_name={queue_name}"
        with BlockingQueue(queue_name, connection=url) as made:
            queue = face(made)
            for value in ("a", "b", "c"):
                queue.put(value)
                ours = [
                    each["id"]
                    for each in client.client_list()
                    if each["name"] == queue_name
                ]
                assert ours
                for number in ours:
                    client.client_kill_filter(_id=number)
                wait_until(
                    lambda: all(
                        each["name"] != queue_name for each in client.client_list()
                    ),
                    description="they are closed",
                )

            assert queue.read_all() == ["a", "b", "c"]

    def test_offer_whose_reply_is_lost_was_sent_once_and_says_so(
        self, through_proxy: redis.Redis, proxy: Proxy, queue_name: str, face: Face
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy) as made:
            queue = face(made)
            queue.put("seen before")
            proxy.lose_reply_to(b"lost")

            with pytest.raises(MaybeScheduled):
                queue.put("lost")

            assert queue.read_all() == ["seen before", "lost"]

    def test_remove_whose_reply_is_lost_removed_one(
        self, through_proxy: redis.Redis, proxy: Proxy, queue_name: str, face: Face
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy) as made:
            queue = face(made)
            queue.put("twice")
            queue.put("twice")
            proxy.lose_reply_to(b"LREM")

            with pytest.raises(MaybeScheduled):
                queue.remove("twice")

            assert queue.read_all() == ["twice"]

    def test_wait_whose_connection_is_cut_goes_on(
        self,
        through_proxy: redis.Redis,
        proxy: Proxy,
        client: redis.Redis,
        queue_name: str,
        face: Face,
    ) -> None:
        with BlockingQueue(queue_name, connection=through_proxy) as made:
            queue = face(made)
            pusher = threading.Timer(0.3, client.rpush, [queue_name, 1])
            pusher.start()
            cutter = threading.Timer(0.1, proxy.cut)
            cutter.start()

            assert queue.poll(60) == 1

            pusher.join()
            cutter.join()


def test_poll_from_any_passes_no_earlier_queue_that_gets_an_element_meanwhile(
    blocking: Make,
    client: redis.Redis,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the first queue gets its element after it was looked at, and before the second got its own."""
    other = f"{queue_name}:other"
    queue, take = blocking(), Taker.take

    def take_late(taker: Taker, keys: Any, limit: int) -> Any:
        if keys.queue.name == other and not client.exists(other):
            client.rpush(queue_name, 1)
            client.rpush(other, 2)
        return (yield from take(taker, keys, limit))

    monkeypatch.setattr(Taker, "take", take_late)
    taken = [queue.poll_from_any(20, other)]
    monkeypatch.undo()
    taken += [queue.poll_from_any(20, other), queue.poll_from_any(0, other)]

    assert taken == [1, 2, None]


def test_poll_from_any_pauses_if_an_earlier_queue_holds_an_element_and_gives_none(
    blocking: Make,
    client: redis.Redis,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = f"{queue_name}:other"
    queue, take = blocking(), Taker.take
    client.rpush(queue_name, 1)
    client.rpush(other, 2)

    def take_from_other(taker: Taker, keys: Any, limit: int) -> Any:
        if keys.queue.name == queue_name:
            return Batch(keys, b"", 0.0, [], [], [], math.inf)
        return (yield from take(taker, keys, limit))

    pauses_ms = []

    def pause(request: Pause, client: redis.Redis) -> None:
        pauses_ms.append(request.wait_ms)
        monkeypatch.undo()

    monkeypatch.setattr(Taker, "take", take_from_other)
    monkeypatch.setattr(Pause, "do", pause)

    assert queue.poll_from_any(20, other) == 1
    assert pauses_ms == [OVERTAKEN_MS]
    assert queue.poll_from_any(20, other) == 2


class TestCancellation:
    async def test_cancelled_wait_takes_nothing(
        self, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = blocking()
        task = asyncio.create_task(queue.atake())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        client.rpush(queue_name, 1)

        assert await queue.apoll(20) == 1

    async def test_second_cancellation_leaves_no_element_leased(
        self, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = blocking(lease=60)
        for turns in range(40):
            client.rpush(queue_name, 1)
            task = asyncio.create_task(queue.atake())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            (taken,) = await asyncio.gather(task, return_exceptions=True)
            if taken != 1:
                assert await queue.apoll(20) == 1

    async def test_cancellation_that_the_client_swallows_ends_the_take_all_the_same(
        self,
        blocking: Make,
        client: redis.Redis,
        queue_name: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As redis-py does on Python 3.11, whose wait_for returns a result that comes with the cancellation."""
        client.rpush(queue_name, 1)
        queue = blocking(lease=60)
        original = running.aexecute

        async def swallow(*args: Any) -> Any:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                monkeypatch.undo()
            return await original(*args)

        monkeypatch.setattr(running, "aexecute", swallow)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(queue.atake())

        assert await queue.apoll(20) == 1

    async def test_wait_for_ends_a_take_in_time(self, blocking: Make) -> None:
        took = []
        for _ in range(5):
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(blocking().atake(), 0.1)
            took.append(time.monotonic() - begun)

        assert min(took) < 1

    async def test_many_takes_at_once_get_one_each(
        self, blocking: Make, client: redis.Redis, queue_name: str
    ) -> None:
        queue = blocking()
        tasks = [asyncio.create_task(queue.atake()) for _ in range(20)]
        await asyncio.sleep(0.05)

        client.rpush(queue_name, *range(20))

        assert sorted(await asyncio.gather(*tasks)) == list(range(20))


class TestTheObject:
    def test_async_client_serves_sync_methods_too(
        self, async_client: redis.asyncio.Redis, queue_name: str
    ) -> None:
        with BlockingQueue(queue_name, connection=async_client) as queue:
            queue.put(1)

            assert queue.take() == 1

    async def test_async_client_serves_async_methods(
        self, async_client: redis.asyncio.Redis, queue_name: str
    ) -> None:
        async with BlockingQueue(queue_name, connection=async_client) as queue:
            await queue.aput(1)

            assert await queue.atake() == 1

    def test_url_is_a_connection(
        self, server: Server, queue_name: str, face: Face
    ) -> None:
        with BlockingQueue(queue_name, connection=server.url) as made:
            queue = face(made)
            queue.put(1)

            assert queue.take() == 1

    def test_resp2_client_is_a_connection(
        self, server: Server, queue_name: str, face: Face
    ) -> None:
        client = server.client(protocol=2)
        with BlockingQueue(queue_name, connection=client) as made:
            queue = face(made)
            queue.put(1)

            assert queue.poll(20) == 1
            assert queue.poll(0.05) is None

    def test_impatient_client_waits_all_the_same(
        self, server: Server, client: redis.Redis, queue_name: str, face: Face
    ) -> None:
        impatient = server.client(socket_timeout=1)
        with BlockingQueue(queue_name, connection=impatient) as made:
            pusher = threading.Timer(1.7, client.rpush, [queue_name, 1])
            pusher.start()

            assert face(made).poll(20) == 1

            pusher.join()

    def test_closed_object_can_be_used_again(self, blocking: Make) -> None:
        queue = blocking()
        queue.put(1)
        queue.poll(0.01)
        queue.close()
        queue.close()

        assert queue.poll(0.01) is None

    def test_is_true_though_empty_and_prints_its_name(
        self, blocking: Make, queue_name: str
    ) -> None:
        assert blocking()
        assert repr(blocking()) == f"<BlockingQueue {queue_name!r}>"
        assert "x" not in blocking()


def claim(
    keys: DeliveryKeys,
    *,
    limit: int = 1,
    lease_ms: int = 10_000,
    mode: Mode = Mode.TAKE,
) -> Any:
    return claim_calls.claim(
        keys,
        owner=b"o" * 8,
        request=store_calls.new_token()[:8].encode(),
        limit=limit,
        lease_ms=lease_ms,
        mode=mode,
    )


def wait_out(client: redis.Redis, keys: DeliveryKeys, from_us: int) -> int:
    """Let a lease of a second end, in which the queue is looked at all the time; return when that was."""
    for ms in range(0, 1_200, 200):
        run(client, at(from_us + ms * 1000, claim(keys, limit=0, lease_ms=1_000)))
    return from_us + 1_200_000


def confirm(keys: DeliveryKeys, claimed: Any, now_us: int | None = None) -> Any:
    return queue_calls.confirm(keys, claimed.jobs, owner=b"o" * 8)


def interrupt_after(count: int, client: redis.Redis, steps: Any) -> None:
    """Perform some calls of an operation, and throw an interrupt in where the reply of the last would come."""
    result = None
    for _ in range(count):
        request = steps.send(result)
        result = run(client, request)
    request = steps.throw(KeyboardInterrupt)
    while True:
        request = steps.send(run(client, request))


def commands(client: redis.Redis) -> int:
    """Count what clients have asked for, what scripts did left aside."""
    statistics = client.info("commandstats")
    return sum(
        statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("evalsha", "blmove")
    )


def sha_of(name: str) -> bytes:
    script, _ = bind_in(PACKAGES, name, DeliveryKeys.of("q"))
    return script.sha.encode()
