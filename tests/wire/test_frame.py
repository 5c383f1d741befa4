import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.wire.frame import Frame, FrameFormat, pack, redisson_version, unpack
from django_delayq.wire.queue_keys import QueueKeys

DLC0, BC0LC0 = FrameFormat.DLC0, FrameFormat.BC0LC0
GOLDEN = Path(__file__).parent.parent / "golden" / "frames.jsonl"
ELEMENTS = [
    json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(
    ("frame", "format", "random_id", "payload"),
    [
        (
            "0102030405060708 0500000000000000 68656c6c6f",
            DLC0,
            "0102030405060708",
            b"hello",
        ),
        (
            "08 0102030405060708 0500000000000000 68656c6c6f",
            BC0LC0,
            "0102030405060708",
            b"hello",
        ),
        ("0102030405060708 0000000000000000", DLC0, "0102030405060708", b""),
        ("08 0102030405060708 0000000000000000", BC0LC0, "0102030405060708", b""),
        ("ffffffffffffffff 0200000000000000 0d0a", DLC0, "ffffffffffffffff", b"\r\n"),
        (
            "08 ffffffffffffffff 0200000000000000 0d0a",
            BC0LC0,
            "ffffffffffffffff",
            b"\r\n",
        ),
    ],
)
def test_frame_is_packed_and_told_apart(frame, format, random_id, payload):
    frame, random_id = bytes.fromhex(frame), bytes.fromhex(random_id)

    assert pack(random_id, payload, format) == frame
    assert unpack(frame) == Frame(format, random_id, payload)
    assert unpack(frame, prefer=DLC0) == Frame(format, random_id, payload)


def test_frame_that_is_both_formats_goes_to_the_preferred_one():
    frame = bytes.fromhex("08 02030405060708 01 0000000000000000")

    assert unpack(frame) == Frame(BC0LC0, bytes.fromhex("0203040506070801"), b"")
    assert unpack(frame, prefer=DLC0) == Frame(
        DLC0, bytes.fromhex("0802030405060708"), b"\0"
    )


@pytest.mark.parametrize(
    "element", ELEMENTS, ids=lambda e: f"{e['version']}-{e['queue']}"
)
def test_frame_of_redisson_unpacks_and_packs_again(element):
    raw = bytes.fromhex(element["frame"])
    format = FrameFormat.for_redisson(element["version"])

    frame = unpack(raw)

    assert frame.format is format
    assert frame.payload.hex() == element["destination"][0]
    assert pack(frame.random_id, frame.payload, format) == raw
    assert unpack(raw, prefer=DLC0) == frame


@pytest.mark.parametrize(
    "element", ELEMENTS, ids=lambda e: f"{e['version']}-{e['queue']}"
)
def test_keys_of_redisson_are_ours(element):
    keys = QueueKeys.of(element["queue"])

    assert keys.timeout_set == element["timeout_key"]
    assert keys.delay_queue == element["list_key"]
    assert {m["channel"] for m in element["messages"]} <= {keys.channel}


@pytest.mark.parametrize(
    ("frame", "offset", "message"),
    [
        ("", 0, "0 bytes end before"),
        ("0801020304050607080000", 11, "11 bytes end before"),
        ("0102030405060708 0500000000000000 6865", 8, "truncated as dLc0: length 5 at byte 8, but 2"),
        ("0102030405060708 0100000000000000 6865", 8, "oversized as dLc0: length 1 at byte 8, but 2"),
        ("08 0102030405060708 0500000000000000 68", 9, "truncated as Bc0Lc0: length 5 at byte 9, but 1"),
        ("08 0102030405060708 0000000000000000 68", 9, "oversized as Bc0Lc0: length 0 at byte 9, but 1"),
        ("09 0102030405060708 0100000000000000 68", 8, "as dLc0"),
        ("0801020304050607 0500000000000000", 9, "truncated as dLc0: length 5 at byte 8, but 0"),
        ("0102030405060708 ffffffffffffffff 68", 8, "length 18446744073709551615"),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_with_its_offset(frame, offset, message):
    data = bytes.fromhex(frame)

    with pytest.raises(DecodeError, match=message) as caught:
        unpack(data)

    assert caught.value.offset == offset
    assert caught.value.data == data


@pytest.mark.parametrize("random_id", [b"", b"1234567", b"123456789"])
@pytest.mark.parametrize("format", FrameFormat)
def test_random_id_is_eight_bytes(random_id, format):
    with pytest.raises(EncodeError, match="8 bytes"):
        pack(random_id, b"", format)


@pytest.mark.parametrize(
    ("version", "format"),
    [
        ("3.2.0", DLC0),
        ("3.16.6", DLC0),
        ("3.16", DLC0),
        ("3.21.0", DLC0),
        ("3.21.1", BC0LC0),
        ("3.21.1-SNAPSHOT", BC0LC0),
        ("3.22", BC0LC0),
        ("3.100.0", BC0LC0),
        ("4.7.0", BC0LC0),
        ("4.0.0-beta1", BC0LC0),
    ],
)
def test_version_of_redisson_decides_the_format(version, format):
    assert FrameFormat.for_redisson(version) is format


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.1.9", "came with 3.2.0"),
        ("2.15.2", "came with 3.2.0"),
        ("3.21", "third number"),
        ("", "not a version"),
        ("3", "not a version"),
        ("latest", "not a version"),
        ("3.16.6 ", "not a version"),
        ("३.१६", "not a version"),
        (3.16, "not a version"),
    ],
)
def test_version_without_an_answer_is_refused(version, message):
    with pytest.raises(EncodeError, match=message):
        FrameFormat.for_redisson(version)


def test_version_may_lack_its_third_number():
    assert redisson_version("3.16") == (3, 16, None)
    assert redisson_version("3.16.6") == (3, 16, 6)


@given(
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=300),
    st.sampled_from(FrameFormat),
)
def test_every_id_and_payload_comes_back(random_id, payload, format):
    frame = pack(random_id, payload, format)

    assert unpack(frame, prefer=format) == Frame(format, random_id, payload)


@given(st.binary(max_size=64), st.sampled_from(FrameFormat))
def test_any_bytes_unpack_to_what_packs_to_them_or_fail(data, prefer):
    try:
        frame = unpack(data, prefer=prefer)
    except DecodeError:
        return

    assert pack(frame.random_id, frame.payload, frame.format) == data
