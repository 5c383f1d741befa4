"""What pages show of bytes that anybody may have written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import JavaEnum, JavaObject, JavaValue
from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import PREVIEW_BYTES
from django_delayq.display.attempts import read_failure
from django_delayq.display.payloads import RAW_TEXT_BYTES, read_content, read_raw
from django_delayq.display.texts import PAGE_CHARACTERS, ROW_CHARACTERS, clean
from django_delayq.display.time_texts import Moment, relative_text, short_time_text
from django_delayq.display.value_json import compact_json, pretty_json
from tests.signed import signed

QUEUE = QueueSettings(name="orders")
NOW_MS = 1_790_000_000_000
S, MIN, H, D = 1000, 60_000, 3_600_000, 86_400_000


def payload(*args: Any, task: str = "shop.send", **kwargs: Any) -> bytes:
    return signed(task, "orders", *args, **kwargs)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "now"),
        (-999, "now"),
        (S, "in 1 s"),
        (-59 * S, "59 s ago"),
        (2 * H, "in 2 h"),
        (2 * H + 5 * MIN + 59 * S, "in 2 h 5 min"),
        (-(3 * D + 4 * H), "3 d 4 h ago"),
        (D + 59 * MIN, "in 1 d"),
        (10**17, "in more than 10,000 years"),
    ],
)
def test_relative_time_has_two_units_at_most(ms: int, text: str) -> None:
    assert relative_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.001, "1 µs"),
        (0.0019, "1.9 µs"),
        (0.0994, "99 µs"),
        (0.1, "0.1 ms"),
        (0.67, "0.67 ms"),
        (206.4, "206 ms"),
        (2_940.0, "2.9 s"),
        (61_000.0, "1 min 1 s"),
    ],
)
def test_measured_time_is_short(ms: float | None, text: str) -> None:
    assert short_time_text(ms) == text


def test_moment_is_in_the_current_time_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"

    moment = Moment.of(NOW_MS + 2 * H + 7, NOW_MS)

    assert moment is not None
    assert (moment.local, moment.zone) == ("2026-09-21 18:13:20.007", "CEST")
    assert moment.in_seconds == "2026-09-21 18:13:20"
    assert moment.relative == "in 2 h"


def test_moment_that_java_allows_and_python_does_not_is_shown() -> None:
    moment = Moment.of(10**17 - 1, NOW_MS)

    assert moment is not None
    assert moment.local == "after the year 9999"
    assert moment.in_seconds == "after the year 9999"


def test_call_is_read_into_one_line_and_into_json() -> None:
    whole = payload(1, "zwei", [3], x=None)

    content = read_content(whole, len(whole), QUEUE, in_full=True)

    assert (content.task, content.is_foreign) == ("shop.send", False)
    assert content.arguments == '1, "zwei", [3], x=null'
    assert [(name, json.loads(value)) for name, value in content.call] == [
        ("", 1),
        ("", "zwei"),
        ("", [3]),
        ("x", None),
    ]


def test_long_arguments_are_cut_in_a_row() -> None:
    whole = payload(*["x" * 50] * 1000, **{f"k{n}": n for n in range(1000)})

    content = read_content(whole, len(whole), QUEUE)

    assert len(content.arguments) <= ROW_CHARACTERS + 1


def test_beginning_of_a_huge_payload_tells_the_task_and_the_size() -> None:
    whole = payload("x" * 100_000, task='a "quoted" \\ task')

    content = read_content(whole[:PREVIEW_BYTES], len(whole), QUEUE)

    assert content.task == 'a "quoted" \\ task'
    assert content.arguments.startswith('"args":["xxx')
    assert content.arguments.endswith(f"… ({len(whole):,} bytes)")


def test_beginning_of_a_huge_foreign_payload_is_shown_as_it_is() -> None:
    content = read_content(b"\xff" * PREVIEW_BYTES, 10**6, QUEUE)

    assert content.is_foreign
    assert content.arguments.startswith("ffffff")
    assert "1,000,000 bytes" in content.arguments


def test_foreign_payload_is_read_by_the_queues_codec() -> None:
    queue = QueueSettings(name="orders", codec="LongCodec")

    content = read_content(b"4711", 4, queue, in_full=True)

    assert (content.is_foreign, content.arguments, content.value) == (
        True,
        "4711",
        "4711",
    )


def test_foreign_payload_that_cannot_be_read_says_why() -> None:
    queue = QueueSettings(name="orders", codec="LongCodec")

    content = read_content(b"4711a", 5, queue)

    assert content.arguments == "4711a"
    assert "is not a number that LongCodec reads" in content.fault


def test_job_that_only_another_codec_reads_tells_its_task() -> None:
    whole = payload("x" * 5_000, codec=get_codec("CborJacksonCodec"))
    queue = QueueSettings(name="orders", codec="StringCodec")

    content = read_content(whole, len(whole), queue)

    assert (content.task, content.is_foreign) == ("shop.send", False)
    assert content.is_unchecked
    assert content.fault.startswith("StringCodec does not read it, and it looks like")


def test_codec_that_fails_in_its_own_way_is_shown_too() -> None:
    class Broken:
        name = "Broken"

        def encode(self, value: object) -> bytes:
            raise NotImplementedError

        def decode(self, payload: bytes) -> object:
            raise ZeroDivisionError("who would have thought")

    queue = QueueSettings(name="orders", codec=Broken())

    content = read_content(b"1", 1, queue)

    assert content.fault == "ZeroDivisionError: who would have thought"


def test_back_references_of_java_do_not_explode() -> None:
    value: Any = "boom" * 1000
    for _ in range(40):
        value = [value, value]

    assert len(pretty_json(value)) <= PAGE_CHARACTERS + 1
    assert len(compact_json(value)) <= ROW_CHARACTERS + 1


def test_long_list_that_is_repeated_does_not_take_long() -> None:
    item = list(range(10_000))
    value = [item] * 10_000

    assert len(compact_json(value)) <= ROW_CHARACTERS + 1


def test_values_of_java_are_shown_with_their_class() -> None:
    value = JavaObject(
        "shop.Order",
        {
            "state": JavaEnum("shop.State", "OPEN"),
            "locale": JavaValue("java.util.Locale", "de_DE"),
            "raw": b"\x00\x01",
            "total": 10**5000,
            "map": {(1, 2): 3, None: 4},
        },
    )

    assert json.loads(pretty_json(value)) == {
        "@class": "shop.Order",
        "state": "shop.State.OPEN",
        "locale": "de_DE",
        "raw": "<2 bytes> 0001",
        "total": f"<integer of {(10**5000).bit_length()} bits>",
        "map": {"[1, 2]": 3, "null": 4},
    }


def test_half_a_surrogate_pair_does_not_stop_the_response() -> None:
    assert clean("a\ud800b").encode() == b"a\\ud800b"


def test_no_text_turns_the_one_behind_it_around() -> None:
    assert clean("\u202eevil\u2067 שלום ü") == "\\u202eevil\\u2067 שלום ü"
    assert compact_json("\u202e") == '"\\u202e"'
    assert compact_json({"\ud800": "\udfff"}) == '{"\\ud800": "\\udfff"}'


@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_shown(data: bytes, cut: int) -> None:
    content = read_content(data[: len(data) - cut], len(data), QUEUE)
    raw = read_raw(data)
    failure = read_failure(data, NOW_MS)

    shown = [content.task, content.arguments, content.fault, raw.text, raw.dump]
    if failure is not None:
        shown += [failure.message, failure.kind, failure.traceback, failure.line]
    assert "".join(text or "" for text in shown).encode() is not None


def test_raw_payload_is_text_where_it_is_text() -> None:
    raw = read_raw("Größe".encode() * 10_000)

    assert raw.text is not None
    assert raw.text.startswith("GrößeGröße")
    assert (raw.size, raw.shown, raw.is_cut) == (70_000, RAW_TEXT_BYTES, True)


def test_raw_payload_is_a_hex_dump_where_it_is_not() -> None:
    raw = read_raw(b"\x04\x3e\x03abc\x00\xff 0123456789")

    assert raw.text is None
    assert raw.dump == (
        "00000000  04 3e 03 61 62 63 00 ff  20 30 31 32 33 34 35 36  .>.abc.. 0123456\n"
        "00000010  37 38 39                                          789"
    )


def test_error_of_a_stranger_is_shown_whatever_its_shape() -> None:
    failure = read_failure(b'{"error":[1],"kind":null,"at":"noon"}', NOW_MS)

    assert failure is not None
    assert (failure.message, failure.kind, failure.at) == ("[1]", "", None)
    assert read_failure(b"", NOW_MS) is None
