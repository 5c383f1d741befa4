"""Frames of two Redisson generations in one queue: what a survey finds, and what a rewrite leaves as it was.

Redisson's own transfer simulates the Java side: it unpacks only one format, so it stops where a real one would.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from django_delayq.core import frame_heads
from django_delayq.core.states import State
from django_delayq.tools import frame_calls, pace, reframe
from django_delayq.tools.frame_calls import FrameName
from django_delayq.tools.pace import step_sizer
from django_delayq.tools.reframe import Reframing
from django_delayq.tools.survey import (
    Jam,
    fitting_settings,
    lookups_of,
    similar_queues,
    take_survey,
)
from django_delayq.transport.run import run
from django_delayq.wire import frame as wire_frame
from django_delayq.wire.frame import FrameFormat, format_of, is_read_by, pack
from django_delayq.wire.script_calls import START, Cursor
from tests.core.rig import (
    JAVA_FORMATS,
    LISTED,
    T0,
    UNLISTED,
    Rig,
    name_in,
    names_of,
    payload,
)
from tests.polling import wait_until
from tests.servers import Server

OLD, NEW = FrameFormat.DLC0, FrameFormat.BC0LC0
OTHER = {OLD: NEW, NEW: OLD}
pairs = pytest.mark.parametrize("target", FrameFormat)
#: Seventeen bytes that both formats can read.
AMBIGUOUS = b"\x08" + b"abcdefg" + b"\x01" + bytes(8)


def rewrite(rig: Rig, target: FrameFormat, **sizes: int) -> Counter[str]:
    """Rewrite by the rig's clock, step by step; returns what was done."""
    done: Counter[str] = Counter()
    for kind in ("tail", "zset"):
        cursor = START
        while not cursor.is_at_end:
            step = rig.run(
                frame_calls.reframe(
                    rig.keys,
                    kind,  # type: ignore[arg-type]
                    target,
                    cursor,
                    **sizes,
                )
            )
            cursor = step.cursor
            done += Counter(
                steps=1,
                seen=step.seen,
                rewritten=step.rewritten,
                alone=step.alone,
                quarantined=step.quarantined,
            )
    return done


def members(rig: Rig) -> dict[bytes, float]:
    return dict(rig.client.zrange(rig.keys.queue.timeout_set, 0, -1, withscores=True))


def formats_in(rig: Rig) -> set[FrameFormat | None]:
    both = [*members(rig), *rig.frames()]
    return {format_of(frame, len(frame)) for frame in both}


def other_form(frame: bytes) -> bytes:
    unpacked = wire_frame.unpack(frame)
    return pack(unpacked.random_id, unpacked.payload, OTHER[unpacked.format])


def dump(rig: Rig) -> dict[bytes, bytes | None]:
    found = rig.client.scan_iter(match=f"*{rig.keys.queue.name}*", count=1000)
    return {key: rig.client.dump(key) for key in found}


def java_offer(rig: Rig, payload: str | bytes, wait: int, **options: Any) -> bytes:
    """Offer as Redisson does, with random bytes, except those that would mean something by chance.

    In one of 256 frames of the older format, the first byte is 7. The newer format takes that for the length of an id,
    and reads the frame. Our marks begin with d9.
    """
    random_id = os.urandom(8)
    while random_id[0] in (7, 0xD9):
        random_id = os.urandom(8)
    return rig.java_offer(payload, wait, random_id=random_id, **options)


# Rewriting, every pair of formats.


@pairs
def test_java_frames_keep_bytes_start_time_and_place(
    rig: Rig, target: FrameFormat
) -> None:
    chance = random.Random(1)
    for n in range(300):
        java_offer(rig, f"x{n}", chance.randrange(50), frame_format=OTHER[target])
        if n % 3 == 0:
            java_offer(rig, f"y{n}", chance.randrange(50), frame_format=target)
    expected = {
        frame if format_of(frame, len(frame)) is target else other_form(frame): score
        for frame, score in members(rig).items()
    }
    order = [name_in(wire_frame.unpack(frame).payload) for frame in rig.frames()]

    done = rewrite(rig, target)

    assert members(rig) == expected
    assert [
        name_in(wire_frame.unpack(frame).payload) for frame in rig.frames()
    ] == order
    assert done["rewritten"] == 300
    rig.java_frames = set(expected)
    rig.now = 60
    assert sum(iter(lambda: rig.java_transfer(frame_format=target), 0)) == 400


@pairs
@pytest.mark.parametrize("listed", [True, False])
def test_jobs_are_found_by_id_after_a_rewrite(
    rig: Rig, target: FrameFormat, listed: bool
) -> None:
    options: dict[str, Any] = {"frame_format": OTHER[target], "insertion_list": listed}
    rig.schedule({f"j{n}": 5 for n in range(40)}, **options)
    rig.schedule({"u": 7}, unique="ek", **options)
    before = rig.state()

    assert rewrite(rig, target)["rewritten"] == 41

    assert formats_in(rig) == {target}
    after = rig.state()
    assert sorted(after.pop("timeout_set")) == sorted(before.pop("timeout_set"))
    assert after == before
    rig.check()
    assert rig.cancel("j7") == "cancelled"
    assert rig.reschedule("j8", 90) == ("rescheduled", 90)
    assert rig.inspect("j9").state == State.SCHEDULED
    assert rig.schedule({"v": 1}, unique="ek")[0].holder == "u"
    rig.now = 10
    assert sorted(names_of(rig.claim(100))) == sorted(
        ["u", *(f"j{n}" for n in range(40) if n not in (7, 8))]
    )


@pairs
def test_marked_frames_are_still_found_by_search(rig: Rig, target: FrameFormat) -> None:
    chance = random.Random(2)
    for n in range(0, 1_000, 50):
        names = {f"j{n + i}": chance.randrange(1_000) for i in range(50)}
        rig.schedule(names, frame_format=chance.choice(list(FrameFormat)))
        java_offer(rig, f"x{n}", 500)

    rewrite(rig, target, batch=70)

    rig.java_frames = {
        frame
        for frame in members(rig)
        if not wire_frame.unpack(frame).random_id.startswith(LISTED)
    }
    rig.check()
    rig.now = 500
    assert rig.transfer(150).moved == 150
    rig.check()


@pairs
def test_second_rewrite_changes_nothing(rig: Rig, target: FrameFormat) -> None:
    rig.schedule({"a": 1}, frame_format=OTHER[target])
    java_offer(rig, "x", 2, frame_format=OTHER[target])
    rig.client.zadd(rig.keys.queue.timeout_set, {AMBIGUOUS: T0})
    rewrite(rig, target)
    before = dump(rig)

    done = rewrite(rig, target)

    assert done["rewritten"] == done["quarantined"] == 0
    assert dump(rig) == before
    assert AMBIGUOUS in members(rig)
    rig.is_checked = False


def test_what_becomes_ambiguous_by_a_rewrite_is_not_rewritten_again(
    rig: Rig,
) -> None:
    """Without its first byte, the frame could be an empty payload in the other format."""
    rig.java_offer(b"\0", 1, frame_format=NEW, random_id=b"\x08abcdefg"[:8])
    rewrite(rig, OLD)
    (frame,) = members(rig)
    assert len(frame) == 17

    done = rewrite(rig, OLD)

    assert done["rewritten"] == 0
    assert wire_frame.unpack(frame, prefer=OLD).payload == b"\0"
    rig.is_checked = False


@pairs
def test_element_that_is_there_in_both_formats_stays_twice(
    rig: Rig, target: FrameFormat
) -> None:
    for frame_format in FrameFormat:
        rig.java_offer("x", 1, frame_format=frame_format, random_id=b"12345678")
    rig.java_frames = set()
    rig.is_checked = False

    assert rewrite(rig, target)["rewritten"] == 1

    assert len(members(rig)) == 2
    assert formats_in(rig) == {target}
    assert set(rig.frames()) == set(members(rig))
    rig.now = 5
    assert rig.java_transfer(frame_format=target) == 2


def test_frame_in_the_list_alone_is_rewritten_there(rig: Rig) -> None:
    """Nobody transfers that frame, but Java's readAll, contains and remove would stop at it."""
    frame = java_offer(rig, "x", 1, frame_format=OLD)
    rig.client.zrem(rig.keys.queue.timeout_set, frame)
    rig.is_checked = False

    done = rewrite(rig, NEW)

    assert (done["rewritten"], done["alone"]) == (1, 1)
    assert rig.frames() == [other_form(frame)]
    assert members(rig) == {}


@pytest.mark.parametrize("batch", [1, 3, 500])
def test_what_is_no_frame_goes_to_quarantine_whole(rig: Rig, batch: int) -> None:
    queue = rig.keys.queue
    rig.schedule({"a": 1, "b": 2}, frame_format=OLD)
    garbage = [b"bad", b"", b"x" * 40, b"\x08" + bytes(30)]
    for frame in garbage[:2]:
        rig.client.zadd(queue.timeout_set, {frame: T0})
        rig.client.rpush(queue.delay_queue, frame)
    rig.client.zadd(queue.timeout_set, {garbage[2]: T0 + 9_000_000})
    rig.client.lpush(queue.delay_queue, garbage[3])
    rig.schedule({"c": 3}, frame_format=NEW)

    done = rewrite(rig, OLD, batch=batch)

    assert (done["rewritten"], done["quarantined"]) == (1, 4)
    assert sorted(rig.client.hvals(rig.keys.payloads)) == sorted(garbage)
    assert rig.counters()["quarantined"] == 4
    assert [name_in(wire_frame.unpack(f).payload) for f in rig.frames()] == [
        "a",
        "b",
        "c",
    ]


def test_tombstones_of_a_server_that_died_are_swept_and_not_quarantined(
    rig: Rig,
) -> None:
    rig.schedule({"a": 1, "b": 2}, frame_format=OLD)
    rig.client.rpush(rig.keys.queue.delay_queue, b"\0")
    rig.client.hset(rig.keys.counters, "sweeping", 1)

    done = rewrite(rig, NEW)

    assert (done["rewritten"], done["quarantined"]) == (2, 0)


def test_copy_of_a_job_that_somebody_offered_leaves_its_locator_alone(
    rig: Rig,
) -> None:
    rig.schedule({"a": 5}, frame_format=NEW)
    java_offer(rig, payload("a"), 9, frame_format=OLD)

    rewrite(rig, NEW)

    assert rig.reschedule("a", 50) == ("rescheduled", 50)


@pairs
def test_java_frame_that_looks_like_ours_is_looked_for_in_the_list(
    rig: Rig, target: FrameFormat
) -> None:
    """In one of 65,536 frames, Java's random bytes begin like those of a frame that was never listed."""
    for frame_format in FrameFormat:
        rig.java_offer(
            f"x-{frame_format.value}",
            5,
            frame_format=frame_format,
            random_id=UNLISTED + b"\xff" * 6,
        )
    cursor = START
    while not cursor.is_at_end:
        step = rig.run(frame_calls.reframe(rig.keys, "zset", target, cursor, lookups=9))
        cursor = step.cursor

    assert set(rig.frames()) == set(members(rig))
    assert formats_in(rig) == {target}
    rig.java_frames = set(members(rig))


@pairs
def test_equal_start_times_are_all_seen_whatever_their_order(
    rig: Rig, target: FrameFormat
) -> None:
    """A rewritten member moves among the members of its score, perhaps across the place where the walk is."""
    for n in range(500):
        # Some begin with 08, as the newer format does; no random id makes an empty payload ambiguous.
        first = os.urandom(1) if n % 5 else bytes([7 + n % 3])
        random_id = first + os.urandom(6) + b"\x42"
        frame_format = OTHER[target] if n % 4 else target
        frame = pack(random_id, b"x" * (n % 3), frame_format)
        rig.client.zadd(rig.keys.queue.timeout_set, {frame: T0})
    before = Counter(
        (unpacked.random_id, unpacked.payload)
        for unpacked in map(wire_frame.unpack, members(rig))
    )

    done = rewrite(rig, target, batch=7)

    assert formats_in(rig) <= {target, NEW}
    assert done["rewritten"] == 375
    assert before == Counter(
        (unpacked.random_id, unpacked.payload)
        for unpacked in map(wire_frame.unpack, members(rig))
    )
    rig.is_checked = False


@pytest.mark.parametrize("budget", [1, 90, 400])
def test_stretch_that_its_bytes_end_is_gone_on_with(rig: Rig, budget: int) -> None:
    for n in range(60):
        java_offer(rig, "x" * n, n // 7, frame_format=OLD)
    # A rewritten frame begins with 08, so the walk would meet a frame again whose bytes lay ahead of that.
    frame = rig.java_offer("alone", 3, frame_format=OLD, random_id=b"\xffbcdefg\x42")
    rig.client.lrem(rig.keys.queue.delay_queue, 1, frame)
    rig.is_checked = False

    for kind, count in (("tail", 60), ("zset", 61)):
        cursor, seen = START, 0
        while not cursor.is_at_end:
            call = frame_heads.survey(rig.keys, kind, cursor, byte_budget=budget)  # type: ignore[arg-type]
            _, cursor, stretch = rig.run(call)
            seen += len(stretch)
            assert sum(frame.size for frame in stretch[:-1]) < budget
        assert seen == count
    done = rewrite(rig, NEW, byte_budget=budget)

    assert (done["rewritten"], done["seen"]) == (61, 121)
    assert formats_in(rig) == {NEW}


def test_members_that_begin_alike_are_all_seen(rig: Rig) -> None:
    alike = [b"a" * n for n in range(1, 6)]
    rig.client.zadd(rig.keys.queue.timeout_set, dict.fromkeys(alike, T0))
    rig.is_checked = False

    cursor, seen = START, []
    while not cursor.is_at_end:
        call = frame_heads.survey(rig.keys, "zset", cursor, batch=1)
        _, cursor, stretch = rig.run(call)
        seen += [frame.head for frame in stretch]

    assert seen == alike


def test_a_step_looks_for_no_more_frames_than_it_may(rig: Rig) -> None:
    for n in range(5):
        java_offer(rig, f"x{n}", n, frame_format=OLD)
    rig.schedule({"a": 1}, frame_format=OLD, insertion_list=False)

    cursor, steps = START, []
    while not cursor.is_at_end:
        step = rig.run(frame_calls.reframe(rig.keys, "zset", NEW, cursor, lookups=2))
        cursor = step.cursor
        steps.append(step.rewritten)

    # The job was never in the list, and knowing that costs nothing.
    assert sum(steps) == 6
    assert max(steps) <= 3
    assert formats_in(rig) == {NEW}
    rig.java_frames = {frame for frame in members(rig) if b"delayq" not in frame}


@pytest.mark.parametrize("score", ["inf", "-inf", "1.5", "-7"])
def test_odd_start_times_stay_as_they_are(rig: Rig, score: str) -> None:
    frame = pack(b"12345678", b"x", OLD)
    rig.client.zadd(rig.keys.queue.timeout_set, {frame: score})
    rig.is_checked = False

    rewrite(rig, NEW)

    assert members(rig) == {other_form(frame): float(score)}


# What a Redisson stops at.


@given(
    data=st.one_of(
        st.binary(max_size=40),
        st.builds(
            pack,
            st.binary(min_size=8, max_size=8),
            st.binary(max_size=300),
            st.sampled_from(list(FrameFormat)),
        ),
        # A length that fits the end, but does not stand where a frame has it.
        st.integers(0, 20).flatmap(
            lambda n: st.builds(
                lambda head, tail: (
                    bytes([n]) + head + bytes([len(tail)] + [0] * 7) + tail
                ),
                st.binary(min_size=n, max_size=n),
                st.binary(max_size=30),
            )
        ),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_is_read_by_says_what_struct_unpack_does(
    client: "redis.Redis[bytes]", data: bytes
) -> None:
    for redisson in FrameFormat:
        try:
            client.eval(
                "struct.unpack(ARGV[1], ARGV[2])", 0, JAVA_FORMATS[redisson], data
            )
        except ResponseError:
            is_read = False
        else:
            is_read = True

        assert (
            is_read_by(redisson, data[: frame_heads.HEAD_BYTES], len(data)) == is_read
        )


def jam(rig: Rig, redisson: FrameFormat, times: int = 1) -> None:
    """Let a Redisson stop in the middle of a transfer, as it does every 5 s."""
    for _ in range(times):
        with pytest.raises(ResponseError, match="data string too short"):
            rig.java_transfer(frame_format=redisson)


def test_survey_of_a_jammed_queue_tells_who_stops_where(rig: Rig) -> None:
    for n in range(3):
        java_offer(rig, f"a{n}", n, frame_format=OLD)
    java_offer(rig, "foreign", 3, frame_format=NEW)
    for n in range(5):
        java_offer(rig, f"b{n}", 4 + n, frame_format=OLD)
    rig.java_frames = set(members(rig))
    java_offer(rig, "far", 10**12, frame_format=OLD)
    rig.now = 100
    jam(rig, OLD, times=2)
    rig.is_checked = False

    survey = take_survey(rig.client, rig.keys)

    assert survey.waiting == {OLD: 9, NEW: 1}
    assert survey.due == {OLD: 8, NEW: 1}
    assert survey.listed == {OLD: 6, NEW: 1}
    assert survey.counts.destination == 6
    assert survey.is_mixed
    stopped = survey.jams[OLD]
    assert (stopped.rank, stopped.format, stopped.delivered_again) == (3, NEW, 3)
    assert survey.behind(stopped) == 5
    assert survey.is_stuck(stopped)
    assert survey.jams[NEW].rank == 0
    assert survey.first_ms == T0
    assert [name.start_time_ms for name in survey.delivered] == [T0, T0 + 1, T0 + 2]
    assert survey.foreign(OLD) == 1
    assert survey.foreign(NEW) == 9


def test_redisson_delivers_again_what_is_left_of_its_batch() -> None:
    assert Jam(250, T0, NEW, 20).delivered_again == 50
    assert Jam(100, T0, NEW, 20).delivered_again == 0


def test_survey_changes_nothing(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 5}, frame_format=OLD)
    java_offer(rig, "x", 1)
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0})
    rig.is_checked = False
    before = dump(rig)

    take_survey(rig.client, rig.keys)

    assert dump(rig) == before


def test_frames_that_were_never_listed_are_not_taken_for_delivered(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0}, insertion_list=False)
    java_offer(rig, "x", 0)

    survey = take_survey(rig.client, rig.keys)

    assert (survey.unlisted, survey.delivered) == (1, [])


def test_nothing_counts_as_delivered_where_nobody_keeps_a_list(rig: Rig) -> None:
    frame = java_offer(rig, "x", 0)
    rig.client.lrem(rig.keys.queue.delay_queue, 1, frame)
    rig.is_checked = False

    assert take_survey(rig.client, rig.keys).delivered == []


def test_survey_counts_what_has_no_place_or_no_time(rig: Rig) -> None:
    timeout_set = rig.keys.queue.timeout_set
    java_offer(rig, "x", 10**12)
    rig.client.zrem(timeout_set, java_offer(rig, "alone", 5))
    odd = {"1.5": b"f", "-3": b"n"}
    for score, text in odd.items():
        rig.client.zadd(timeout_set, {pack(b"12345678", text, NEW): score})
    rig.client.zadd(timeout_set, {AMBIGUOUS: T0, b"bad": T0 + 1})
    rig.is_checked = False

    survey = take_survey(rig.client, rig.keys)

    assert survey.alone == {NEW: 1}
    assert (survey.fractional, survey.negative, survey.ambiguous) == (1, 1, 1)
    assert survey.waiting == {NEW: 4, None: 1}
    assert survey.fitting(OLD) == 1
    # The frame with the fractional score is the head; both generations can read the ambiguous frame.
    assert (survey.jams[NEW].rank, survey.jams[NEW].format) == (2, None)


def test_survey_guesses_the_codec_of_payloads_that_are_not_ours(rig: Rig) -> None:
    rig.schedule({"a": 5})
    for n in range(20):
        java_offer(rig, b"\x04\x3e\x05hello", n, frame_format=OLD)
    rig.client.rpush(rig.keys.queue.destination, b"\x04\x3e\x02hi")

    survey = take_survey(rig.client, rig.keys)

    guess = survey.guess()
    assert guess.names[0] == "MarshallingCodec"
    assert guess.looked_at >= 6
    assert survey.jobs == 1


def test_settings_that_fit_are_told_by_format_and_codec(rig: Rig) -> None:
    java_offer(rig, b"\x04\x3e\x05hello", 5, frame_format=OLD)

    survey = take_survey(rig.client, rig.keys)

    assert fitting_settings(survey) == {"REDISSON": "3.16.6"}
    assert fitting_settings(survey, codec="StringCodec") == {
        "REDISSON": "3.21.0",
        "CODEC": "StringCodec",
    }
    java_offer(rig, b"hello", 5, frame_format=NEW)
    assert fitting_settings(take_survey(rig.client, rig.keys)) == {}


@pytest.mark.parametrize("prefix", ["app:", "{app}:", "a*?[b"])
def test_queues_with_a_prefix_are_found_by_their_name(
    client: "redis.Redis[bytes]", queue_name: str, prefix: str
) -> None:
    other = Rig(client, prefix + queue_name)
    other.schedule({"a": 5})

    assert similar_queues(client, queue_name) == [prefix + queue_name]
    assert similar_queues(client, f"{queue_name}*") == []


# A whole run.


@pairs
def test_run_frees_a_jammed_redisson_and_tells_it_to_look(
    rig: Rig, target: FrameFormat
) -> None:
    for n in range(6):
        java_offer(rig, f"a{n}", n, frame_format=target)
    java_offer(rig, "foreign", 6, frame_format=OTHER[target])
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 7})
    for n in range(200):
        java_offer(rig, f"b{n}", 8 + n, frame_format=target)
    rig.now = 1_000
    jam(rig, target, times=2)
    rig.client.delete(rig.keys.queue.destination)

    with rig.listening(rig.keys.queue.channel) as heard:
        tally = Reframing(rig.client, rig.keys, target).run()

        assert heard() == [0]

    assert (tally.rewritten, tally.quarantined) == (1, 1)
    assert sum(iter(lambda: rig.java_transfer(frame_format=target), 0)) == 207
    taken = Counter(iter(rig.java_take, None))
    assert taken == Counter(
        [*(f"a{n}" for n in range(6)), "foreign", *(f"b{n}" for n in range(200))]
    )
    assert rig.frames() == []


def test_run_that_finds_nothing_to_do_tells_nobody(rig: Rig) -> None:
    java_offer(rig, "x", 5, frame_format=NEW)

    with rig.listening(rig.keys.queue.channel) as heard:
        tally = Reframing(rig.client, rig.keys, NEW).run()

        assert heard() == []
    assert tally.changed == 0


def test_delivered_ones_are_kept_unless_asked_otherwise(rig: Rig) -> None:
    for n in range(4):
        java_offer(rig, f"a{n}", n, frame_format=OLD)
    java_offer(rig, "foreign", 6, frame_format=NEW)
    rig.now = 10
    jam(rig, OLD)
    survey = take_survey(rig.client, rig.keys)
    kept = Reframing(rig.client, rig.keys, NEW)
    kept.run()
    assert len(members(rig)) == 5
    renamed = [FrameName(n.start_time_ms, NEW, n.random_id) for n in survey.delivered]
    reframing_ = Reframing(rig.client, rig.keys, NEW)

    reframing_.drop_delivered(renamed)

    assert reframing_.tally.dropped == 4
    assert [wire_frame.unpack(frame).payload for frame in members(rig)] == [b"foreign"]
    rig.java_frames = set(members(rig))


def test_what_was_listed_again_or_left_meanwhile_is_not_dropped(rig: Rig) -> None:
    listed = java_offer(rig, "x", 0, frame_format=OLD)
    gone = FrameName(T0, OLD, b"12345678")
    name = FrameName(T0, OLD, listed[:8])

    flags = rig.run(frame_calls.drop_delivered(rig.keys, [name, gone]))

    assert flags == [False, False]
    assert listed in members(rig)


@pairs
@pytest.mark.parametrize("listed", [True, False])
def test_retries_during_a_run_deliver_nothing_that_the_jam_had_not(
    rig: Rig, target: FrameFormat, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MAX_BATCH", 7)
    order = random.Random(4).sample(range(200), 200)
    for n in order:
        format = target if n < 2 else FrameFormat.DLC0 if n % 2 else FrameFormat.BC0LC0
        java_offer(rig, f"e{n}", n // 2, frame_format=format)
    if not listed:
        rig.client.delete(rig.keys.queue.delay_queue)
    rig.now = 1_000
    jam(rig, target)
    ahead = set(iter(rig.java_take, None))
    assert {"e0", "e1"} <= ahead < {f"e{n}" for n in range(4)}
    steps = 0

    def retry(what: str, done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        with suppress(ResponseError):
            rig.java_transfer(frame_format=target)

    Reframing(rig.client, rig.keys, target, retry, _sizer=step_sizer(7)).run()

    assert steps > 30
    while rig.java_transfer(frame_format=target):
        pass
    taken = Counter(iter(rig.java_take, None))
    assert len(taken) == 200
    assert {name for name, times in taken.items() if times > 1} <= ahead


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "not answered"])
def test_interrupt_waits_until_what_the_server_did_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    for n in range(20):
        rig.java_offer(f"x{n}", 10_000, frame_format=OLD)
    asked = 0

    def run_and_interrupt(client: Any, call: Any) -> Any:
        nonlocal asked
        step = run(client, call)
        if isinstance(step, frame_calls.Reframed):
            asked += 1
            os.kill(os.getpid(), signal.SIGINT)
            if fails:
                raise RedisConnectionError("no reply")
        return step

    monkeypatch.setattr(reframe, "run", run_and_interrupt)
    before = signal.getsignal(signal.SIGINT)
    interrupted = Reframing(rig.client, rig.keys, NEW, _sizer=step_sizer(7))

    with pytest.raises(KeyboardInterrupt):
        interrupted.run()

    assert asked == 1
    assert interrupted.tally.rewritten == (0 if fails else 7)
    assert signal.getsignal(signal.SIGINT) is before
    rig.is_checked = False


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("steps", range(12))
def test_run_that_is_interrupted_after_any_step_can_be_run_again(
    rig: Rig, listed: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "MAX_BATCH", 7)
    names = {f"j{n}": n % 3 for n in range(40)}
    rig.schedule(names, frame_format=OLD, insertion_list=listed)
    left = itertools.count(steps, -1)

    def interrupt(what: str, done: int, total: int) -> None:
        if next(left) == 0:
            raise KeyboardInterrupt

    interrupted = Reframing(rig.client, rig.keys, NEW, interrupt, _sizer=step_sizer(7))
    try:
        interrupted.run()
    except KeyboardInterrupt:
        assert interrupted.tally.steps == steps + 1
    rig.check()
    between = rig.state()
    again = Reframing(rig.client, rig.keys, NEW)
    again.run()

    assert sorted(between["timeout_set"]) == sorted(names.items())
    assert between["locators"] == sorted(names)
    assert interrupted.tally.rewritten + again.tally.rewritten == 40
    assert formats_in(rig) == {NEW}
    rig.check()
    rig.now = 5
    assert sorted(names_of(rig.claim(100))) == sorted(names)


def test_steps_shrink_where_the_server_is_slow_and_grow_where_it_is_quick() -> None:
    sizer = step_sizer(64)
    # The server is 50 ms away, which is no reason for small steps.
    for _ in range(20):
        sizer.learn(sizer.size, 50 + 0.005 * sizer.size)
    assert sizer.size > 64
    for _ in range(20):
        sizer.learn(sizer.size, 50 + 2 * sizer.size)
    for _ in range(20):
        assert sizer.size <= 4
        sizer.learn(sizer.size, 50 + 2 * sizer.size)
    assert lookups_of(0) == 100
    assert lookups_of(50_000) == 1


def test_follow_rewrites_what_is_offered_until_its_caller_has_enough(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reframe, "REST", 0.0)
    far = 10**12
    run = Reframing(rig.client, rig.keys, NEW)
    java_offer(rig, "x", far, frame_format=OLD)
    following = run.follow()
    assert next(following).rewritten == 1
    # The second is not published, as it is not the head.
    for n in range(3):
        java_offer(rig, f"y{n}", far + n, frame_format=OLD)
    rig.client.zadd(
        rig.keys.queue.timeout_set, {pack(b"12345678", b"unlisted", OLD): T0}
    )

    begun = time.monotonic()
    tally = next(following)

    assert time.monotonic() - begun < 15 * reframe.FOLLOW_S
    following.close()
    assert tally.rewritten == 5
    assert formats_in(rig) == {NEW}
    assert not [t for t in threading.enumerate() if t.name == "delayq-frames"]
    rig.is_checked = False


def test_follow_wakes_with_a_new_head_and_frees_who_stopped_there(
    rig: Rig,
) -> None:
    run = Reframing(rig.client, rig.keys, NEW)
    following = run.follow()
    next(following)
    with rig.listening(rig.keys.queue.channel) as heard:
        java_offer(rig, "x", 0, frame_format=OLD)
        rig.client.publish(rig.keys.queue.channel, T0)

        next(following)

        assert heard() == [0, 0]
    following.close()
    rig.java_frames = set(members(rig))


# Beside others.


def test_all_arrive_while_both_generations_offer_and_one_of_them_transfers(
    rig: Rig, server: Server, queue_name: str
) -> None:
    """Offers, a Java that jams, cancels, and the rewrite run by the server's clock, each on a connection of its own."""
    rig.is_checked = False
    count, ended = 600, threading.Event()
    failures: list[BaseException] = []
    cancelled: set[str] = set()

    def guarded(work: Callable[[Rig], None]) -> threading.Thread:
        def run() -> None:
            try:
                with server.client() as client:
                    work(LiveBench(client, queue_name))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def offer(own: Rig) -> None:
        chance = random.Random(5)
        for n in range(count):
            wait = chance.choice([0, 5, 50, 400])
            frame_format = list(FrameFormat)[n // 2 % 2]
            if n % 2:
                frame = pack(os.urandom(8), b"x%d" % n, frame_format)
                # In one step, as in Redisson's script: in between, somebody would find it in only one of the two.
                with own.client.pipeline(transaction=True) as pipeline:
                    pipeline.zadd(own.keys.queue.timeout_set, {frame: own.at(wait)})
                    pipeline.rpush(own.keys.queue.delay_queue, frame)
                    pipeline.execute()
            else:
                own.schedule({f"j{n}": wait}, frame_format=frame_format)
            if n % 50 == 48 and own.cancel(f"j{n}") == "cancelled":
                cancelled.add(f"j{n}")

    def transfer(own: Rig) -> None:
        while not ended.is_set():
            with suppress(ResponseError):
                own.java_transfer(frame_format=NEW)
            ended.wait(0.005)

    def rewrite_all(own: Rig) -> None:
        run = Reframing(own.client, own.keys, NEW)
        while not ended.is_set():
            run.run()
            run._catch_up()

    others = [guarded(transfer), guarded(rewrite_all)]
    guarded(offer).join()
    queue = rig.keys.queue
    try:
        wait_until(
            lambda: failures or not rig.client.zcard(queue.timeout_set),
            description="all transferred",
            timeout=60,
        )
    finally:
        ended.set()
        for thread in others:
            thread.join()

    assert failures == []
    arrived = set(iter(rig.java_take, None))
    expected = {f"{'jx'[n % 2]}{n}" for n in range(count)}
    # A Java that jammed behind a job may have delivered it before it was cancelled.
    assert arrived | cancelled == expected
    assert rig.frames() == []


class LiveBench(Rig):
    """A rig by the server's clock."""

    @property
    def now_us(self) -> int:
        seconds, us = self.client.time()
        return int(seconds) * 1_000_000 + int(us)


# Cost.


@pytest.fixture(scope="module")
def slow_server(server_kind: str) -> Iterator[Server]:
    """A server that logs how long each call took."""
    if server_kind == "external":
        pytest.skip("reconfigures its server; DELAYQ_TEST_URL is somebody's")
    options = {"slowlog_log_slower_than": "0", "slowlog_max_len": "10000"}
    server = Server(server_kind, options)
    yield server.start()
    server.stop()


def durations_us(client: "redis.Redis[bytes]") -> list[int]:
    log = client.slowlog_get(10_000)
    return [item["duration"] for item in log if item["command"].startswith(b"EVAL")]


def offer_many(rig: Rig, count: int, size: int, frame_format: FrameFormat) -> None:
    chance = random.Random(3)
    for start in range(0, count, 1_000):
        offered = [
            pack(chance.randbytes(8), chance.randbytes(size), frame_format)
            for _ in range(start, min(count, start + 1_000))
        ]
        rig.client.zadd(
            rig.keys.queue.timeout_set,
            {frame: T0 + chance.randrange(10**6) for frame in offered},
        )
        rig.client.rpush(rig.keys.queue.delay_queue, *offered)


def test_each_step_is_short_among_a_hundred_thousand_frames(
    slow_server: Server,
) -> None:
    client = slow_server.client()
    client.flushall()
    rig = Rig(client, "many")
    offer_many(rig, 100_000, 40, OLD)
    client.slowlog_reset()

    tally = Reframing(client, rig.keys, NEW).run()

    durations = durations_us(client)
    assert tally.rewritten == 100_000
    assert median(durations) < 5_000
    # A loaded machine may interrupt a step, which is no finding.
    assert sorted(durations)[int(len(durations) * 0.8)] < 15_000


def test_huge_payloads_make_small_steps(slow_server: Server) -> None:
    client = slow_server.client()

    def costs_us(count: int) -> tuple[int, int]:
        """Return how long the steps take that do most of the work of a rewrite and of a survey."""
        client.flushall()
        rig = Rig(client, "huge")
        offer_many(rig, 300, 10, OLD)
        offer_many(rig, count, 1 << 20, OLD)
        client.slowlog_reset()
        tally = Reframing(client, rig.keys, NEW).run()
        assert tally.rewritten == 300 + count
        rewrite = durations_us(client)
        client.slowlog_reset()
        survey = take_survey(client, rig.keys)
        assert survey.waiting == {NEW: 300 + count}
        return weighed(rewrite), weighed(durations_us(client))

    def is_alike() -> bool:
        few, many = costs_us(8), costs_us(30)
        return all(
            among_many < 2.5 * among_few + 2_000
            for among_few, among_many in zip(few, many, strict=True)
        )

    # Here as well, an interrupted step is no finding.
    assert any(is_alike() for _ in range(5))
    client.flushall()


def weighed(durations: list[int]) -> int:
    """Return the duration of the step at the middle of the total time, not of the number of steps."""
    spent, total = 0, sum(durations)
    for duration in sorted(durations):
        spent += duration
        if 2 * spent >= total:
            return duration
    raise AssertionError("nothing was done")


# Any operations, in any order, against a model.

formats = st.sampled_from(list(FrameFormat))
waits = st.sampled_from([0, 0, 1, 5, 50, 1_000])


class MixedQueueMachine(RuleBasedStateMachine):
    """One queue of both generations: each element comes once, and once more each time a Java jams behind it."""

    def __init__(self, client: "redis.Redis[bytes]", name: str) -> None:
        super().__init__()
        self.rig = Rig(client, name)
        if keys := list(client.scan_iter(match=f"*{name}*", count=1000)):
            client.delete(*keys)
        self.names = (f"n{n}" for n in itertools.count())
        self.waiting: set[str] = set()
        self.jobs: set[str] = set()
        #: Deliveries so far, and how many of them were made by a Java that jammed.
        self.delivered: Counter[str] = Counter()
        self.jammed: Counter[str] = Counter()
        self.garbage = 0
        self.places: dict[tuple[str, FrameFormat], Cursor] = {}

    @rule(frame_format=formats, wait=waits, many=st.integers(1, 6))
    def java_offers(self, frame_format: FrameFormat, wait: int, many: int) -> None:
        for _ in range(many):
            name = next(self.names)
            self.rig.java_offer(name, wait, frame_format=frame_format)
            self.waiting.add(name)

    @rule(frame_format=formats, wait=waits, listed=st.booleans())
    def schedule(self, frame_format: FrameFormat, wait: int, listed: bool) -> None:
        names = [next(self.names) for _ in range(3)]
        self.rig.schedule(
            dict.fromkeys(names, wait),
            frame_format=frame_format,
            insertion_list=listed,
        )
        self.waiting.update(names)
        self.jobs.update(names)

    @rule(wait=waits, listed=st.booleans())
    def somebody_stores_what_is_no_frame(self, wait: int, listed: bool) -> None:
        self.garbage += 1
        frame = b"garbage %d" % self.garbage
        queue = self.rig.keys.queue
        self.rig.client.zadd(queue.timeout_set, {frame: self.rig.at(wait)})
        if listed:
            self.rig.client.rpush(queue.delay_queue, frame)

    @rule(ms=waits)
    def time_passes(self, ms: int) -> None:
        self.rig.now += ms

    @rule(frame_format=formats, limit=st.sampled_from([2, 5, 100]))
    def java_transfers(self, frame_format: FrameFormat, limit: int) -> None:
        try:
            self.rig.java_transfer(limit, frame_format=frame_format)
        except ResponseError:
            is_jammed = True
        else:
            is_jammed = False
        self.take(is_jammed)

    @rule(batch=st.integers(1, 8))
    def worker_transfers(self, batch: int) -> None:
        self.rig.transfer(batch)
        self.take(is_jammed=False)

    def take(self, is_jammed: bool) -> None:
        for name in iter(self.rig.java_take, None):
            assert name in self.waiting, f"{name} was delivered and not there"
            self.delivered[name] += 1
            if is_jammed:
                self.jammed[name] += 1
            else:
                self.waiting.discard(name)

    @rule(
        wanted=formats,
        kind=st.sampled_from(["tail", "zset"]),
        batch=st.integers(1, 9),
        budget=st.sampled_from([1, 100, 1_000]),
    )
    def a_step_of_a_rewrite(
        self, wanted: FrameFormat, kind: Any, batch: int, budget: int
    ) -> None:
        cursor = self.places.get((kind, wanted), START)
        call = frame_calls.reframe(
            self.rig.keys,
            kind,
            wanted,
            cursor,
            batch=batch,
            lookups=batch,
            byte_budget=budget,
        )
        step = self.rig.run(call)
        self.places[kind, wanted] = START if step.cursor.is_at_end else step.cursor

    @rule(wanted=formats)
    def a_whole_rewrite(self, wanted: FrameFormat) -> None:
        rewrite(self.rig, wanted, lookups=50)
        assert formats_in(self.rig) <= {wanted}

    @rule(wanted=formats)
    def a_whole_rewrite_that_drops(self, wanted: FrameFormat) -> None:
        survey = take_survey(self.rig.client, self.rig.keys)
        Reframing(self.rig.client, self.rig.keys, wanted).drop_delivered(
            survey.delivered
        )
        left = {name for name, _ in self.rig.state().get("timeout_set", [])}
        dropped = self.waiting - left
        assert all(self.jammed[name] for name in dropped), "only what was delivered"
        self.waiting -= dropped

    @rule(n=st.integers(0, 1_000), wait=waits)
    def move_or_cancel(self, n: int, wait: int) -> None:
        jobs = sorted(self.jobs & self.waiting)
        if not jobs:
            return
        name = jobs[n % len(jobs)]
        if n % 2:
            assert self.rig.reschedule(name, wait)[0] == "rescheduled"
        else:
            assert self.rig.cancel(name) == "cancelled"
            self.waiting.discard(name)

    @invariant()
    def everything_is_somewhere(self) -> None:
        state = self.rig.state()
        there = [name for name, _ in state.get("timeout_set", [])]
        elements = [name for name in there if not name.startswith("garbage")]
        assert Counter(elements) == Counter(self.waiting)
        aside = len(there) - len(elements) + len(state.get("quarantine", []))
        assert aside == self.garbage
        for name in self.delivered:
            once = name not in self.waiting
            assert self.delivered[name] <= self.jammed[name] + once
        assert not self.rig.client.hexists(self.rig.keys.counters, "sweeping")

    def teardown(self) -> None:
        self.a_whole_rewrite(NEW)
        self.rig.now += 2_000
        while self.rig.java_transfer(frame_format=NEW):
            self.take(is_jammed=False)
        assert self.waiting == set()
        assert self.rig.frames() == []


def test_nothing_is_lost_and_all_is_delivered_in_any_mix(
    client: "redis.Redis[bytes]", queue_name: str
) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: MixedQueueMachine(client, queue_name),
        settings=settings(
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
