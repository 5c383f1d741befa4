"""`claim_few`: it does what a whole claim does, or it does nothing at all."""

from collections.abc import Callable

import pytest
import redis

from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat
from tests.conftest import keys_of
from tests.core.rig import LEASE, T0, Rig, names_of, payload, token

FLAT = {"insertion_list": False}


@pytest.fixture
def flat(client: "redis.Redis[bytes]", queue_name: str) -> Rig:
    """A queue without Redisson's list, which was served a moment ago and has nothing else to do."""
    rig = Rig(client, queue_name, **FLAT)
    rig.schedule({"first": 0})
    rig.acknowledge(rig.lease())
    return rig


def held(rig: Rig) -> dict[bytes, bytes | None]:
    return {
        key: rig.client.dump(key) for key in keys_of(rig.client, rig.keys.queue.name)
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
        rig = Rig(client, f"{queue_name}{few:d}", frame_format=frame_format, **FLAT)
        rig.schedule({"first": 0})
        rig.acknowledge(rig.lease(request=b"before--"))
        for name, wait in waits.items():
            rig.schedule({name: wait}, unique=unique and unique + name)
        rig.now = 9.5
        claim = rig.claim_few if few else rig.claim
        told.append(claim(limit, request=b"request-"))
        headers = client.hgetall(rig.keys.headers)
        left.append((rig.state(), headers, client.hgetall(rig.keys.claims)))
        rig.check()

    assert told[0] is not None
    assert told[0] == told[1]
    assert left[0] == left[1]


def test_a_whole_claim_repeats_it(flat: Rig) -> None:
    flat.schedule({"a": 1, "b": 2, "c": 3})
    flat.now = 5
    claimed = flat.claim_few(2, request=b"request-")

    repeated = flat.claim(2, request=b"request-")

    assert claimed is not None
    assert names_of(claimed) == names_of(repeated) == ["a", "b"]
    flat.check()


def test_a_job_it_leased_ends_and_is_retried_as_any(flat: Rig) -> None:
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


def nobody_was_served(rig: Rig) -> None:
    rig.client.delete(rig.keys.control)


def long_not_served(rig: Rig) -> None:
    rig.is_served = False
    rig.now = 5_000


def newer_format(rig: Rig) -> None:
    rig.client.hset(rig.keys.control, "format", signatures.FORMAT + 1)


def lease_is_over(rig: Rig) -> None:
    rig.schedule({"b": 0})
    rig.claim(1)
    rig.client.zadd(rig.keys.leases, {token("b"): T0 + 5})


def retry_is_due(rig: Rig) -> None:
    rig.schedule({"b": 0})
    rig.retry(rig.lease(), wait=1)


def given_back(rig: Rig) -> None:
    rig.schedule({"b": 0})
    rig.give_back(rig.lease())


def java_pushed(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"java's")


def java_offered(rig: Rig) -> None:
    rig.java_offer("java's", 1)


def no_frame(rig: Rig) -> None:
    rig.client.zadd(rig.keys.queue.timeout_set, {b"no frame": T0})


def listed(rig: Rig) -> None:
    rig.schedule({"b": 0}, insertion_list=True)


def held_to_its_start(rig: Rig) -> None:
    rig.schedule({"b": 0}, unique="sk")


def many(rig: Rig) -> None:
    rig.schedule({f"j{n}": 0 for n in range(20)})


def large(rig: Rig) -> None:
    rig.schedule({"b": 0, "c": 0}, size=20_000)


def ended_before(rig: Rig) -> None:
    rig.client.zadd(rig.keys.ended, {token("a"): (T0 + 1) * 8 + 1})


def is_leased(rig: Rig) -> None:
    rig.client.hset(rig.keys.headers, token("a"), b"x")


def locator_is_gone(rig: Rig) -> None:
    rig.client.hdel(rig.keys.locators, token("a"))


def offered_again_by_somebody_else(rig: Rig) -> None:
    """The job's own payload in another frame, whose 8 bytes the job's locator does not know."""
    rig.client.hdel(rig.keys.locators, token("a"))
    rig.schedule({"a": 50}, again=False)


def forged(rig: Rig) -> None:
    """The job's token with another MAC."""
    (frame,) = rig.client.zrange(rig.keys.queue.timeout_set, 0, 0)
    rig.client.zadd(
        rig.keys.queue.timeout_set,
        {frame.replace(payload("a"), payload("a", signature="z")): T0},
    )
    rig.client.zrem(rig.keys.queue.timeout_set, frame)


def copied_in_the_other_format(rig: Rig) -> None:
    """A frame with the same number and payload, but without the byte that only one of the formats has."""
    (frame,) = rig.client.zrange(rig.keys.queue.timeout_set, 0, 0)
    rig.client.zadd(rig.keys.queue.timeout_set, {frame[1:]: T0})


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
    flat: Rig, what: Callable[[Rig], None]
) -> None:
    flat.schedule({"a": 0})
    what(flat)
    flat.now = flat.now + 10
    before = held(flat)

    assert flat.claim_few(20) is None

    assert held(flat) == before


def test_does_something_once_a_whole_claim_has_done_the_rest(flat: Rig) -> None:
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
