"""The claim of a few frames: the same as a whole claim where it does something, and nothing at all elsewhere."""

from collections.abc import Callable

import pytest
import redis

from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from django_delayq.wire import signing
from django_delayq.wire.frame import FrameFormat
from tests.conftest import keys_of
from tests.delivery.bench import LEASE, T0, Bench, names_of, payload, token

FLAT = {"insertion_list": False}


@pytest.fixture
def flat(client: "redis.Redis[bytes]", queue_name: str) -> Bench:
    """A queue without Redisson's list that was served a moment ago, and nothing else is to be done there."""
    bench = Bench(client, queue_name, **FLAT)
    bench.schedule({"first": 0})
    bench.acknowledge(bench.lease())
    return bench


def held(bench: Bench) -> dict[bytes, bytes | None]:
    return {
        key: bench.client.dump(key)
        for key in keys_of(bench.client, bench.keys.queue.name)
    }


# Where it does something.


@pytest.mark.parametrize("frame_format", list(FrameFormat))
@pytest.mark.parametrize(
    ("waits", "limit"),
    [
        ({}, 5),
        ({"a": 5}, 5),
        ({"a": 20}, 5),
        ({"a": 5, "later": 20}, 5),
        ({"a": 5, "b": 6, "later": 20}, 5),
        ({"a": 5, "b": 5, "c": 6, "d": 7}, 2),
        ({"a": 5, "b": 6}, 1),
        ({f"j{n}": n % 3 for n in range(7)}, 8),
        ({"a": 5, "far": LEASE + 60_000}, 8),
    ],
)
@pytest.mark.parametrize("unique", ["", "e"])
def test_does_what_a_whole_claim_does(
    client: "redis.Redis[bytes]",
    queue_name: str,
    frame_format: FrameFormat,
    waits: dict[str, int],
    limit: int,
    unique: str,
) -> None:
    told, left = [], []
    for few in (True, False):
        bench = Bench(client, f"{queue_name}{few:d}", frame_format=frame_format, **FLAT)
        bench.schedule({"first": 0})
        bench.acknowledge(bench.lease(request=b"before--"))
        for name, wait in waits.items():
            bench.schedule({name: wait}, unique=unique and unique + name)
        bench.now = 9.5
        claim = bench.claim_few if few else bench.claim
        told.append(claim(limit, request=b"request-"))
        headers = client.hgetall(bench.keys.headers)
        left.append((bench.state(), headers, client.hgetall(bench.keys.claims)))
        bench.check()

    assert told[0] is not None
    assert told[0] == told[1]
    assert left[0] == left[1]


def test_a_whole_claim_repeats_it(flat: Bench) -> None:
    flat.schedule({"a": 1, "b": 2, "c": 3})
    flat.now = 5
    claimed = flat.claim_few(2, request=b"request-")

    repeated = flat.claim(2, request=b"request-")

    assert claimed is not None
    assert names_of(claimed) == names_of(repeated) == ["a", "b"]
    flat.check()


def test_a_job_it_leased_ends_and_is_retried_as_any(flat: Bench) -> None:
    flat.schedule({"a": 1, "b": 2})
    flat.now = 5
    claimed = flat.claim_few()
    assert claimed is not None
    first, second = claimed.jobs

    assert flat.renew(first, second) == []
    assert flat.acknowledge(first) == []
    assert flat.retry(second, wait=3) == []

    assert flat.inspect("a").state is State.SUCCEEDED
    assert flat.inspect("b").state is State.RETRYING
    flat.check()


# Where it does nothing.


def nobody_was_served(bench: Bench) -> None:
    bench.client.delete(bench.keys.control)


def long_not_served(bench: Bench) -> None:
    bench.is_served = False
    bench.now = 5_000


def newer_format(bench: Bench) -> None:
    bench.client.hset(bench.keys.control, "format", signing.FORMAT + 1)


def lease_is_over(bench: Bench) -> None:
    bench.schedule({"b": 0})
    bench.claim(1)
    bench.client.zadd(bench.keys.leases, {token("b"): T0 + 5})


def retry_is_due(bench: Bench) -> None:
    bench.schedule({"b": 0})
    bench.retry(bench.lease(), wait=1)


def given_back(bench: Bench) -> None:
    bench.schedule({"b": 0})
    bench.give_back(bench.lease())


def java_pushed(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"java's")


def java_offered(bench: Bench) -> None:
    bench.java_offer("java's", 1)


def no_frame(bench: Bench) -> None:
    bench.client.zadd(bench.keys.queue.timeout_set, {b"no frame": T0})


def listed(bench: Bench) -> None:
    bench.schedule({"b": 0}, insertion_list=True)


def held_to_its_start(bench: Bench) -> None:
    bench.schedule({"b": 0}, unique="sk")


def many(bench: Bench) -> None:
    bench.schedule({f"j{n}": 0 for n in range(20)})


def large(bench: Bench) -> None:
    bench.schedule({"b": 0, "c": 0}, size=20_000)


def ended_before(bench: Bench) -> None:
    bench.client.zadd(bench.keys.ended, {token("a"): (T0 + 1) * 8 + 1})


def is_leased(bench: Bench) -> None:
    bench.client.hset(bench.keys.headers, token("a"), b"x")


def locator_is_gone(bench: Bench) -> None:
    bench.client.hdel(bench.keys.locators, token("a"))


def offered_again_by_somebody_else(bench: Bench) -> None:
    """Its own payload in another frame, whose 8 bytes its locator does not know."""
    bench.client.hdel(bench.keys.locators, token("a"))
    bench.schedule({"a": 50}, again=False)


def forged(bench: Bench) -> None:
    """Its token before another MAC."""
    (frame,) = bench.client.zrange(bench.keys.queue.timeout_set, 0, 0)
    bench.client.zadd(
        bench.keys.queue.timeout_set,
        {frame.replace(payload("a"), payload("a", signature="z")): T0},
    )
    bench.client.zrem(bench.keys.queue.timeout_set, frame)


def copied_in_the_other_format(bench: Bench) -> None:
    """A frame of the same number and payload, without the byte that only one of the formats has."""
    (frame,) = bench.client.zrange(bench.keys.queue.timeout_set, 0, 0)
    bench.client.zadd(bench.keys.queue.timeout_set, {frame[1:]: T0})


@pytest.mark.parametrize(
    "what",
    [
        nobody_was_served,
        long_not_served,
        newer_format,
        lease_is_over,
        retry_is_due,
        given_back,
        java_pushed,
        java_offered,
        no_frame,
        listed,
        held_to_its_start,
        many,
        large,
        ended_before,
        is_leased,
        locator_is_gone,
        offered_again_by_somebody_else,
        forged,
        copied_in_the_other_format,
    ],
)
def test_leaves_to_a_whole_claim_what_is_not_so_simple(
    flat: Bench, what: Callable[[Bench], None]
) -> None:
    flat.schedule({"a": 0})
    what(flat)
    flat.now = flat.now + 10
    before = held(flat)

    assert flat.claim_few(20) is None

    assert held(flat) == before


def test_does_something_once_a_whole_claim_has_done_the_rest(flat: Bench) -> None:
    flat.schedule({"b": 0})
    flat.retry(flat.lease(), wait=1)
    flat.now = 5
    assert flat.claim_few() is None
    assert names_of(flat.claim()) == ["b"]

    flat.schedule({"c": 0})
    flat.now = 8
    claimed = flat.claim_few()

    assert claimed is not None
    assert names_of(claimed) == ["c"]
    assert flat.claim(mode=Mode.DIRECT).jobs == []
    flat.check()
