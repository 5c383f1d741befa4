"""Finding one frame by its locator: among thousands that share its start time, in both formats, and Java's."""

import random

import pytest

from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.wire.frame import FrameFormat, pack, unpack
from tests.core.rig import T0, Rig, names_of


def crowd(rig: Rig, seed: int = 3) -> list[str]:
    """Fill one start time with thousands: ours in each variant, and Java's with bytes of every kind."""
    chance = random.Random(seed)
    pipeline = rig.client.pipeline(transaction=False)
    for n in range(1_200):
        frame_format = chance.choice(list(FrameFormat))
        lead = chance.choice([b"", b"\0", b"\x07", b"\x08", b"\x09", b"\xd9", b"\xff"])
        bytes_ = (lead + chance.randbytes(8))[:8]
        body = chance.choice([b"x%d" % n, b"", chance.randbytes(20)])
        frame = pack(bytes_, body, frame_format)
        rig.java_frames.add(frame)
        pipeline.zadd(rig.keys.queue.timeout_set, {frame: T0 + 500})
        pipeline.rpush(rig.keys.queue.delay_queue, frame)
    pipeline.execute()
    names = []
    for part in range(8):
        batch = [f"j{part}-{n}" for n in range(250)]
        rig.schedule(
            dict.fromkeys(batch, 500),
            frame_format=list(FrameFormat)[part % 2],
            insertion_list=part % 4 < 2,
        )
        names += batch
    return names


def test_each_job_is_found_among_thousands_of_one_start_time(rig: Rig) -> None:
    names = crowd(rig)

    for name in random.Random(4).sample(names, 300):
        seen = rig.inspect(name)
        assert (seen.state, seen.score_ms) == (State.SCHEDULED, T0 + 500)
        assert name.encode() + b"-" in seen.payload


def test_first_and_last_of_a_start_time_are_found(rig: Rig) -> None:
    names = crowd(rig)
    for neighbour in (499, 501):
        rig.schedule({f"n{neighbour}": neighbour})

    for name in (names[0], names[249], names[250], names[-1], "n499", "n501"):
        assert rig.inspect(name).state is State.SCHEDULED


def test_each_is_cancelled_or_moved_and_only_that_one(rig: Rig) -> None:
    names = crowd(rig)
    chance = random.Random(5)
    chance.shuffle(names)
    total = rig.client.zcard(rig.keys.queue.timeout_set)

    for name in names[:150]:
        assert rig.cancel(name) == "cancelled"
    for name in names[150:300]:
        assert rig.reschedule(name, 100) == ("rescheduled", 100)

    rig.now = 100
    assert sorted(names_of(rig.claim(500))) == sorted(names[150:300])
    assert rig.client.zcard(rig.keys.queue.timeout_set) == total - 300


def test_frame_that_java_removed_is_not_found_among_its_neighbours(
    rig: Rig,
) -> None:
    rig.schedule({f"j{n}": 500 for n in range(300)})
    frames = rig.frames()
    for n in (0, 1, 150, 299):
        rig.java_remove(frames[n])

    for n in range(300):
        is_gone = n in (0, 1, 150, 299)
        assert rig.inspect(f"j{n}").state == ("missing" if is_gone else "scheduled")

    for n in (0, 1, 150, 299):
        rig.cancel(f"j{n}")


# The ids of other people's elements consist of format, start time and the frame's bytes.


def pseudo_token(frame: bytes, start_time: int) -> str:
    kind, random_id, _ = unpack(frame)
    number = 1 if kind is FrameFormat.DLC0 else 2
    return f"f{number}-{T0 + start_time}-{random_id.hex()}"


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize(
    "bytes_", [b"\0" * 8, b"\xff" * 8, b"\x08\x08\r\n\0%d\x7f", b"ordinary"]
)
def test_foreign_element_is_found_by_its_pseudo_token(
    rig: Rig, frame_format: FrameFormat, bytes_: bytes
) -> None:
    frame = rig.java_offer("x", 70, frame_format=frame_format, random_id=bytes_)
    rig.java_offer("y", 70, frame_format=frame_format)
    name = pseudo_token(frame, 70)

    seen = rig.inspect(name)
    assert (seen.state, seen.score_ms, seen.payload) == ("scheduled", T0 + 70, b"x")
    assert rig.reschedule(name, 90) == ("rescheduled", 90)
    assert rig.inspect(name).state is State.MISSING
    assert rig.cancel(pseudo_token(frame, 90)) == "cancelled"

    assert rig.state() == {"timeout_set": [("y", 70)], "delay_queue": ["y"]}


@pytest.mark.parametrize("neighbours", [0, 5])
def test_bytes_of_one_format_are_not_found_in_a_frame_of_the_other(
    rig: Rig, neighbours: int
) -> None:
    rig.java_offer("12345", 70, frame_format=FrameFormat.DLC0, random_id=b"Zabcdefg")
    for n in range(neighbours):
        rig.java_offer(f"x{n}", 70, random_id=b"AAAAAAA%d" % n)

    found = rig.inspect(f"f2-{T0 + 70}-{b'abcdefg'.hex()}05")

    assert found.state is State.MISSING


def test_page_names_the_pseudo_tokens_that_cancel_takes(rig: Rig) -> None:
    for n, frame_format in enumerate(list(FrameFormat) * 3):
        rig.java_offer(f"x{n}", n, frame_format=frame_format)

    rows = rig.run(queue_reads.page(rig.keys, State.SCHEDULED)).rows

    assert [rig.cancel(row.token) for row in rows] == ["cancelled"] * 6
    assert rig.state() == {}


def test_pseudo_token_among_thousands_of_one_start_time(rig: Rig) -> None:
    crowd(rig)
    rows = []
    for first in range(0, 3_200, 500):
        page = queue_reads.page(rig.keys, State.SCHEDULED, first=first, count=500)
        rows += rig.run(page).rows
    foreign = [row for row in rows if row.token.startswith("f")]
    assert len(foreign) == 1_200

    for row in random.Random(6).sample(foreign, 200):
        seen = rig.inspect(row.token)
        assert (seen.state, seen.payload) == ("scheduled", row.payload)


def test_element_that_is_due_can_be_cancelled_by_its_pseudo_token(
    rig: Rig,
) -> None:
    frame = rig.java_offer("x", 5)
    rig.now = 10

    assert rig.inspect(pseudo_token(frame, 5)).state is State.DUE
    assert rig.cancel(pseudo_token(frame, 5)) == "cancelled"
    assert rig.claim().jobs == []


def test_element_that_is_deep_in_the_destination_queue_gets_no_note_that_nobody_reads(
    rig: Rig,
) -> None:
    frame = rig.java_offer("x", 5)
    rig.client.rpush(rig.keys.queue.destination, *["y"] * 1_500)
    rig.now = 10
    rig.transfer()

    assert rig.cancel(pseudo_token(frame, 5)) is State.MISSING
    assert rig.reschedule(pseudo_token(frame, 5), 90)[0] is State.MISSING
    assert rig.client.hlen(rig.keys.notes) == 0


def test_element_that_is_leased_is_not_found_by_its_old_pseudo_token(
    rig: Rig,
) -> None:
    frame = rig.java_offer("x", 5)
    rig.now = 5
    job = rig.lease()

    assert rig.cancel(pseudo_token(frame, 5)) is State.MISSING
    assert rig.acknowledge(job) == []
