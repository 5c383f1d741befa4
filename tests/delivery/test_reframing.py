"""Frames of two Redisson generations in one queue: what a survey finds, and what a rewrite leaves as it was.

A Java side is simulated by Redisson's own transfer, which unpacks one format only, and so stops where a real one would.
"""

import itertools
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ResponseError

from django_delayq.delivery import frames, reframing
from django_delayq.delivery.frames import FrameName
from django_delayq.delivery.operations import State
from django_delayq.delivery.reframing import Reframing
from django_delayq.delivery.survey import (
    fitting_settings,
    lookups_of,
    similar_queues,
    take_survey,
)
from django_delayq.wire import frame as wire_frame
from django_delayq.wire.frame import FrameFormat, format_of, is_read_by, pack
from tests.delivery.bench import (
    JAVA_FORMATS,
    LISTED,
    T0,
    Bench,
    name_in,
    names_of,
    payload,
)
from tests.servers import Server

OLD, NEW = FrameFormat.DLC0, FrameFormat.BC0LC0
OTHER = {OLD: NEW, NEW: OLD}
pairs = pytest.mark.parametrize("target", FrameFormat)
#: Seventeen bytes that both formats can read.
AMBIGUOUS = b"\x08" + b"abcdefg" + b"\x01" + bytes(8)


def rewrite(bench: Bench, target: FrameFormat, **sizes: int) -> Counter[str]:
    """Rewrite with the bench's clock, step by step; returns what was done."""
    done: Counter[str] = Counter()
    for kind in ("list", "zset"):
        place = frames.START
        while not place.is_end:
            step = bench.run(
                frames.reframe(
                    bench.keys,
                    kind,  # type: ignore[arg-type]
                    target,
                    place,
                    now_us=bench.now_us,
                    **sizes,
                )
            )
            place = step.place
            done += Counter(
                steps=1,
                seen=step.seen,
                rewritten=step.rewritten,
                alone=step.alone,
                quarantined=step.quarantined,
            )
    return done


def members(bench: Bench) -> dict[bytes, float]:
    return dict(
        bench.client.zrange(bench.keys.queue.timeout_set, 0, -1, withscores=True)
    )


def formats_in(bench: Bench) -> set[FrameFormat | None]:
    both = [*members(bench), *bench.frames()]
    return {format_of(frame, len(frame)) for frame in both}


def other_form(frame: bytes) -> bytes:
    unpacked = wire_frame.unpack(frame)
    return pack(unpacked.random_id, unpacked.payload, OTHER[unpacked.format])


def dump(bench: Bench) -> dict[bytes, bytes | None]:
    found = bench.client.scan_iter(match=f"*{bench.keys.queue.name}*", count=1000)
    return {key: bench.client.dump(key) for key in found}


def java_offer(bench: Bench, payload: str | bytes, wait: int, **options: Any) -> bytes:
    """Offer as Redisson does, with its random bytes."""
    return bench.java_offer(payload, wait, random_id=os.urandom(8), **options)


# Rewriting, every pair of formats.


@pairs
def test_java_frames_keep_bytes_start_time_and_place(
    bench: Bench, target: FrameFormat
) -> None:
    chance = random.Random(1)
    for n in range(300):
        java_offer(bench, f"x{n}", chance.randrange(50), frame_format=OTHER[target])
        if n % 3 == 0:
            java_offer(bench, f"y{n}", chance.randrange(50), frame_format=target)
    expected = {
        frame if format_of(frame, len(frame)) is target else other_form(frame): score
        for frame, score in members(bench).items()
    }
    order = [name_in(wire_frame.unpack(frame).payload) for frame in bench.frames()]

    done = rewrite(bench, target)

    assert members(bench) == expected
    assert [
        name_in(wire_frame.unpack(frame).payload) for frame in bench.frames()
    ] == order
    assert done["rewritten"] == 300
    bench.java_frames = set(expected)
    bench.now = 60
    assert sum(iter(lambda: bench.java_transfer(frame_format=target), 0)) == 400


@pairs
@pytest.mark.parametrize("listed", [True, False])
def test_jobs_are_found_by_id_after_a_rewrite(
    bench: Bench, target: FrameFormat, listed: bool
) -> None:
    options: dict[str, Any] = {"frame_format": OTHER[target], "insertion_list": listed}
    bench.schedule({f"j{n}": 5 for n in range(40)}, **options)
    bench.schedule({"u": 7}, unique="ek", **options)
    before = bench.state()

    assert rewrite(bench, target)["rewritten"] == 41

    assert formats_in(bench) == {target}
    after = bench.state()
    assert sorted(after.pop("timeout_set")) == sorted(before.pop("timeout_set"))
    assert after == before
    bench.check()
    assert bench.cancel("j7") == "cancelled"
    assert bench.reschedule("j8", 90) == ("rescheduled", 90)
    assert bench.inspect("j9").state == State.SCHEDULED
    assert bench.schedule({"v": 1}, unique="ek")[0].holder == "u"
    bench.now = 10
    assert sorted(names_of(bench.claim(100))) == sorted(
        ["u", *(f"j{n}" for n in range(40) if n not in (7, 8))]
    )


@pairs
def test_marked_frames_are_still_found_by_search(
    bench: Bench, target: FrameFormat
) -> None:
    chance = random.Random(2)
    for n in range(0, 1_000, 50):
        names = {f"j{n + i}": chance.randrange(1_000) for i in range(50)}
        bench.schedule(names, frame_format=chance.choice(list(FrameFormat)))
        java_offer(bench, f"x{n}", 500)

    rewrite(bench, target, batch=70)

    bench.java_frames = {
        frame
        for frame in members(bench)
        if not wire_frame.unpack(frame).random_id.startswith(LISTED)
    }
    bench.check()
    bench.now = 500
    assert bench.transfer(150).moved == 150
    bench.check()


@pairs
def test_second_rewrite_changes_nothing(bench: Bench, target: FrameFormat) -> None:
    bench.schedule({"a": 1}, frame_format=OTHER[target])
    java_offer(bench, "x", 2, frame_format=OTHER[target])
    bench.client.zadd(bench.keys.queue.timeout_set, {AMBIGUOUS: T0})
    rewrite(bench, target)
    before = dump(bench)

    done = rewrite(bench, target)

    assert done["rewritten"] == done["quarantined"] == 0
    assert dump(bench) == before
    assert AMBIGUOUS in members(bench)
    bench.is_checked = False


def test_what_becomes_ambiguous_by_a_rewrite_is_not_rewritten_again(
    bench: Bench,
) -> None:
    """Without its first byte it could be an empty payload in the other format."""
    bench.java_offer(b"\0", 1, frame_format=NEW, random_id=b"\x08abcdefg"[:8])
    rewrite(bench, OLD)
    (frame,) = members(bench)
    assert len(frame) == 17

    done = rewrite(bench, OLD)

    assert done["rewritten"] == 0
    assert wire_frame.unpack(frame, prefer=OLD).payload == b"\0"
    bench.is_checked = False


@pairs
def test_element_that_is_there_in_both_formats_stays_twice(
    bench: Bench, target: FrameFormat
) -> None:
    for frame_format in FrameFormat:
        bench.java_offer("x", 1, frame_format=frame_format, random_id=b"12345678")
    bench.java_frames = set()
    bench.is_checked = False

    assert rewrite(bench, target)["rewritten"] == 1

    assert len(members(bench)) == 2
    assert formats_in(bench) == {target}
    assert set(bench.frames()) == set(members(bench))
    bench.now = 5
    assert bench.java_transfer(frame_format=target) == 2


def test_frame_in_the_list_alone_is_rewritten_there(bench: Bench) -> None:
    """Java's readAll, contains and remove would stop at it; nobody transfers it, before or after."""
    frame = java_offer(bench, "x", 1, frame_format=OLD)
    bench.client.zrem(bench.keys.queue.timeout_set, frame)
    bench.is_checked = False

    done = rewrite(bench, NEW)

    assert (done["rewritten"], done["alone"]) == (1, 1)
    assert bench.frames() == [other_form(frame)]
    assert members(bench) == {}


@pytest.mark.parametrize("batch", [1, 3, 500])
def test_what_is_no_frame_goes_to_quarantine_whole(bench: Bench, batch: int) -> None:
    queue = bench.keys.queue
    bench.schedule({"a": 1, "b": 2}, frame_format=OLD)
    garbage = [b"bad", b"", b"x" * 40, b"\x08" + bytes(30)]
    for frame in garbage[:2]:
        bench.client.zadd(queue.timeout_set, {frame: T0})
        bench.client.rpush(queue.delay_queue, frame)
    bench.client.zadd(queue.timeout_set, {garbage[2]: T0 + 9_000_000})
    bench.client.lpush(queue.delay_queue, garbage[3])
    bench.schedule({"c": 3}, frame_format=NEW)

    done = rewrite(bench, OLD, batch=batch)

    assert (done["rewritten"], done["quarantined"]) == (1, 4)
    assert sorted(bench.client.hvals(bench.keys.payloads)) == sorted(garbage)
    assert bench.counters()["quarantined"] == 4
    assert [name_in(wire_frame.unpack(f).payload) for f in bench.frames()] == [
        "a",
        "b",
        "c",
    ]


def test_tombstones_of_a_server_that_died_are_swept_and_not_quarantined(
    bench: Bench,
) -> None:
    bench.schedule({"a": 1, "b": 2}, frame_format=OLD)
    bench.client.rpush(bench.keys.queue.delay_queue, b"\0")
    bench.client.hset(bench.keys.counters, "sweeping", 1)

    done = rewrite(bench, NEW)

    assert (done["rewritten"], done["quarantined"]) == (2, 0)


def test_copy_of_a_job_that_somebody_offered_leaves_its_locator_alone(
    bench: Bench,
) -> None:
    bench.schedule({"a": 5}, frame_format=NEW)
    java_offer(bench, payload("a"), 9, frame_format=OLD)

    rewrite(bench, NEW)

    assert bench.reschedule("a", 50) == ("rescheduled", 50)


@pairs
def test_equal_start_times_are_all_seen_whatever_their_order(
    bench: Bench, target: FrameFormat
) -> None:
    """A rewritten member moves among those of its score, across the place where the walk is."""
    for n in range(500):
        # Some begin with 08, where the newer format begins; none makes an empty payload ambiguous.
        first = os.urandom(1) if n % 5 else bytes([7 + n % 3])
        random_id = first + os.urandom(6) + b"\x42"
        frame_format = OTHER[target] if n % 4 else target
        frame = pack(random_id, b"x" * (n % 3), frame_format)
        bench.client.zadd(bench.keys.queue.timeout_set, {frame: T0})
    before = Counter(
        (unpacked.random_id, unpacked.payload)
        for unpacked in map(wire_frame.unpack, members(bench))
    )

    done = rewrite(bench, target, batch=7)

    assert formats_in(bench) <= {target, NEW}
    assert done["rewritten"] == 375
    assert before == Counter(
        (unpacked.random_id, unpacked.payload)
        for unpacked in map(wire_frame.unpack, members(bench))
    )
    bench.is_checked = False


@pytest.mark.parametrize("score", ["inf", "-inf", "1.5", "-7"])
def test_odd_start_times_stay_as_they_are(bench: Bench, score: str) -> None:
    frame = pack(b"12345678", b"x", OLD)
    bench.client.zadd(bench.keys.queue.timeout_set, {frame: score})
    bench.is_checked = False

    rewrite(bench, NEW)

    assert members(bench) == {other_form(frame): float(score)}
