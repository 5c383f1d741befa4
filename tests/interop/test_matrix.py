"""Ten versions of Redisson times their codecs, in both directions: docs/compatibility.md comes from here."""

import json
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from django.test import Client

from django_delayq.codecs.values import Long
from django_delayq.core import queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.transport.call import Call
from django_delayq.transport.run import run
from django_delayq.transport.several import run_all
from django_delayq.wire.delay import parse_delay
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.script_calls import offer
from tests.interop.codecs import ALL, TEXT, is_supported, java_name, python_name
from tests.interop.left_out import LEFT_OUT, left_out
from tests.interop.page import cell
from tests.interop.rounds import STEP_MS, Case, Round
from tests.interop.values import VALUES, describe, normal
from tests.polling import wait_until

each_codec = pytest.mark.parametrize(
    ("version", "codec"), [cell for cell in ALL if is_supported(*cell)]
)
#: Versions for which 10,000 elements go both ways, one of each frame format.
STRESSED = ("3.16.6", "4.7.0")
#: Their delays.
MOST_MS = 300


def taken_by_python(round_: Round, codec: str, what: str, cases: list[Case]) -> None:
    """Take the cases in their order and compare each with what Redisson reads itself."""
    found: dict[str, Any] = {}
    with round_.blocking(codec, what) as queue:
        for case in cases:
            try:
                found[case.label] = promise(queue.poll(60), codec)
            except DecodeError as error:
                found[case.label] = ["refused", str(error), error.data.hex()]
        assert len(queue) == 0
    expected = {case.label: case.read for case in cases}
    assert_same(found, expected, round_, codec, "read")


def assert_same(
    found: dict[str, Any], expected: dict[str, Any], round_: Round, codec: str, how: str
) -> None:
    """Compare what was found under each label; what is listed has to differ, or its listing is out of date."""
    listed = {
        label
        for label in left_out(round_.version, python_name(round_.version, codec), how)
        if label in expected
    }
    differing = {
        label: (_short(found[label]), _short(expected[label]))
        for label in expected
        if found[label] != expected[label]
    }
    unlisted = {label: both for label, both in differing.items() if label not in listed}
    assert not unlisted, [*unlisted]
    assert not listed - {*differing}, "is listed as left out, and is the same"


def promise(value: object, codec: str) -> Any:
    """Describe a value that was read; an int of LongCodec is a Long, whatever its size."""
    return normal(describe(Long(value) if codec == "LongCodec" else value))  # type: ignore[call-overload]


def all_of(values: list[Any], codec: str) -> list[Any]:
    return [promise(value, codec) for value in values]


def _short(found: Any) -> str:
    text = str(found)
    return text if len(text) < 300 else f"{text[:300]}…"


def taken_by_java(round_: Round, codec: str, what: str, cases: list[Case]) -> None:
    """Have Java take the cases in their order, each as the type that the codec promises."""
    found = round_.call("take", codec, what, count=len(cases), timeout_ms=20_000)
    assert len(found) == len(cases)
    assert_same(
        {case.label: normal(each) for case, each in zip(cases, found, strict=True)},
        {case.label: case.promised for case in cases},
        round_,
        codec,
        "take",
    )
    assert round_.call("length", codec, what) == 0


@cell(1)
@each_codec
def test_java_offers_and_transfers_and_python_takes(round_: Round, codec: str) -> None:
    cases = round_.cases(codec)
    assert cases

    items = [[case.description, 5 + STEP_MS * n] for n, case in enumerate(cases)]
    round_.call("offer", codec, "java-java", items=items)

    taken_by_python(round_, codec, "java-java", cases)


@cell(2)
@each_codec
def test_python_transfers_for_a_java_that_died_and_python_takes(
    round_: Round, codec: str
) -> None:
    taken_by_python(round_, codec, "orphan-python", round_.cases(codec))


@cell(2)
@each_codec
def test_python_transfers_for_a_java_that_died_and_java_takes(
    round_: Round, codec: str
) -> None:
    taken_by_java(round_, codec, "orphan-java", round_.small(round_.cases(codec)))


@cell(3)
@each_codec
def test_java_transfers_what_python_left_and_takes_it(
    round_: Round, codec: str
) -> None:
    taken_by_java(round_, codec, "left-java", round_.writable(codec))


@cell(3)
@each_codec
def test_java_transfers_what_python_left_and_python_takes_it(
    round_: Round, codec: str
) -> None:
    taken_by_python(round_, codec, "left-python", round_.small(round_.writable(codec)))


@cell(3)
@each_codec
def test_python_writes_each_value_byte_for_byte_as_java(
    round_: Round, codec: str
) -> None:
    ours = round_.python_codec(codec)
    found: dict[str, Any] = {}

    for case in round_.cases(codec):
        try:
            found[case.label] = ours.encode(case.value).hex()
        except EncodeError as error:
            found[case.label] = f"refused: {error}"

    expected = {case.label: case.payload for case in round_.cases(codec)}
    assert_same(found, expected, round_, codec, "write")


@cell(4)
@each_codec
def test_both_transfer_and_both_consume_each_element_once(
    round_: Round, codec: str
) -> None:
    # Who gets an element is decided by scripts, to which payloads are bytes: many of one codec a version, and of the
    # others so many that each side has some.
    count = 300
    if codec == "StringCodec":
        count = 10_000 if round_.version in STRESSED else 1_000
    # One of them may pause on a busy machine while the other takes all there is.
    for _ in range(3):
        python, java = share_out(round_, codec, count)
        assert sorted([*python, *java]) == [*range(count)]
        if python and java:
            return
    pytest.fail(f"Python had {len(python)} of them, Java {len(java)}")


def share_out(
    round_: Round, codec: str, count: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Have both sides offer, transfer and consume; return the numbers that Python and Java had."""
    kind = TEXT.get(codec, "String")
    delayed = round_.delayed(codec, "both")
    seen: list[int] = []
    is_over = threading.Event()

    def consume() -> None:
        with round_.blocking(codec, "both") as queue:
            while not is_over.is_set():
                if (value := queue.poll(0.05)) is not None:
                    seen.append(number_of(value))

    python = threading.Thread(target=consume)
    python.start()
    # Before anything runs in Java's process, which may have to be replaced.
    round_.call("hold", codec, "both")
    round_.call("consume", codec, "both", threads=2, take=True)
    try:
        offering = round_.peer.begin(
            "offer_many",
            queue=round_.name(codec, "both"),
            codec=java_name(codec),
            kind=kind,
            first=0,
            count=count // 2,
            threads=4,
            least_ms=0,
            most_ms=MOST_MS,
        )
        for first in range(count // 2, count, 500):
            numbers = range(first, min(first + 500, count))
            offers = [
                delayed_offer(round_, codec, _MAKE[kind](number)) for number in numbers
            ]
            assert all(isinstance(due, int) for due in run_all(round_.client, offers))
        with round_.explained():
            offering.result(120)
        # Nobody is asked what has come before all has: on two processors that would be most of the work.
        wait_until(
            lambda: not round_.client.exists(*round_.places(codec, "both")),
            description="all have been taken",
            timeout=120,
        )
    finally:
        is_over.set()
        python.join()
        java = round_.call("stop_consuming", codec, "both")
        round_.call("destroy", codec, "both")
        delayed.destroy()
    return seen, [number_of(text) for text, _ in java]


def delayed_offer(round_: Round, codec: str, value: object) -> Call[int]:
    """What `DelayedQueue.offer` sends, to be sent with others."""
    return offer(
        round_.keys(codec, "both"),
        round_.python_codec(codec).encode(value),
        parse_delay(random.randrange(MOST_MS) / 1000),
        frame_format=FrameFormat.for_redisson(round_.version),
        insertion_list=True,
    )


_MAKE: dict[str, Any] = {
    "String": lambda number: f"{number}:",
    "Long": int,
    "Integer": int,
    "Double": float,
    "byte[]": lambda number: f"{number}:".encode(),
}


def number_of(value: object) -> int:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return int(float(text.partition(":")[0]))


@cell(5)
@each_codec
def test_java_sees_and_changes_what_python_offered(round_: Round, codec: str) -> None:
    first, second, third, fourth, fifth, sixth = cases = round_.some(codec)
    queue = round_.delayed(codec, "seen")

    def java(op: str, **arguments: Any) -> Any:
        return round_.call(op, codec, "seen", **arguments)

    for case in cases:
        queue.offer(case.value, 600)

    assert java("size") == 6
    assert [normal(each) for each in java("read_all")] == [c.promised for c in cases]
    assert [normal(each) for each in java("iterate")] == [c.promised for c in cases]
    assert normal(java("peek")) == first.promised
    assert java("contains", value=second.description)
    assert java("contains_all", values=[sixth.description, second.description])
    assert java("remove", value=second.description)
    assert not java("remove", value=second.description)
    assert second.value not in queue
    assert normal(java("poll_waiting")) == first.promised
    assert len(queue) == 4
    last = round_.name(codec, "last")
    assert normal(java("poll_last_and_offer_first_to", to=last)) == sixth.promised
    with round_.blocking(codec, "last") as destination:
        assert promise(destination.poll(), codec) == sixth.promised
    assert java("remove_all", values=[third.description, first.description])
    assert all_of(queue.read_all(), codec) == [fourth.promised, fifth.promised]
    assert java("retain_all", values=[fifth.description])
    assert all_of(queue.read_all(), codec) == [fifth.promised]
    # Redisson's retainAll leaves what it dropped in the timeout set: its bug, and not for us to hide.
    assert round_.client.zcard(round_.keys(codec, "seen").timeout_set) == 2
    polled = java("poll_waiting_many", limit=5)
    assert [normal(each) for each in polled] == [fifth.promised]
    assert len(queue) == 0
    round_.client.delete(round_.keys(codec, "seen").timeout_set)
    java("destroy")
    queue.destroy()


@cell(5)
@each_codec
def test_python_sees_and_changes_what_java_offered(round_: Round, codec: str) -> None:
    first, second, third, fourth, fifth, sixth = cases = round_.some(codec)
    queue = round_.delayed(codec, "seen")

    def java(op: str, **arguments: Any) -> Any:
        return round_.call(op, codec, "seen", **arguments)

    java("offer", items=[[case.description, 600_000] for case in cases])

    assert len(queue) == 6
    assert all_of(queue.read_all(), codec) == [case.promised for case in cases]
    assert all_of([queue.peek()], codec) == [first.promised]
    assert second.value in queue
    assert queue.contains_all([sixth.value, second.value])
    assert queue.remove(second.value)
    assert not queue.remove(second.value)
    assert not java("contains", value=second.description)
    assert all_of([queue.poll()], codec) == [first.promised]
    assert java("size") == 4
    last = round_.name(codec, "last")
    assert all_of([queue.poll_last_and_offer_first_to(last)], codec) == [sixth.promised]
    assert normal(round_.call("poll", codec, "last", timeout_ms=1000)) == sixth.promised
    assert queue.remove_all([third.value, first.value])
    found = java("read_all")
    assert [normal(each) for each in found] == [fourth.promised, fifth.promised]
    assert queue.retain_all([fifth.value])
    assert [normal(each) for each in java("read_all")] == [fifth.promised]
    assert round_.client.zcard(round_.keys(codec, "seen").timeout_set) == 1
    assert all_of(queue.poll(5), codec) == [fifth.promised]
    assert java("size") == 0
    java("destroy")
    queue.destroy()


@cell(6)
@each_codec
def test_a_handler_runs_what_java_offered_with_a_lease(
    round_: Round, codec: str
) -> None:
    cases = round_.small(round_.readable(codec))
    queue = round_.name(codec, "handled")
    assert round_.worker.is_running, round_.worker.log

    items = [[case.description, 5 + STEP_MS * n] for n, case in enumerate(cases)]
    round_.call("offer", codec, "handled", items=items)
    round_.call("destroy", codec, "handled")

    def records() -> list[Any]:
        return [
            r for r in round_.records.all("handled") if r["job"].startswith(f"{queue}:")
        ]

    wait_until(
        lambda: len(records()) >= len(cases), description="all were run", timeout=60
    )
    found = [normal(line["value"]) for line in records()]
    if codec == "LongCodec":
        found = [["Long", number] for _, number in found]
    assert sorted(found, key=repr) == sorted((case.read for case in cases), key=repr)
    assert all(line["is_leased"] for line in records())


@cell(6)
@each_codec
def test_a_handler_that_fails_is_tried_again_and_ends_as_a_dead_letter(
    round_: Round, codec: str
) -> None:
    cases = round_.some(codec)[:3]
    assert round_.worker.is_running, round_.worker.log

    for what in ("retried", "dead"):
        items = [[case.description, 5] for case in cases]
        round_.call("offer", codec, what, items=items)
        round_.call("destroy", codec, what)

    for what in ("retried", "dead"):
        keys = DeliveryKeys.of(round_.name(codec, what))
        counter = "succeeded" if what == "retried" else "dead"
        wait_until(
            lambda keys=keys, counter=counter: (
                run(round_.client, queue_reads.counts(keys)).counters.get(counter) == 3
            ),
            description=f"all have {counter}",
            timeout=60,
        )
        lines = [
            line
            for line in round_.records.all(what)
            if line["job"].startswith(f"{keys.queue.name}:")
        ]
        assert sorted(line["attempt"] for line in lines) == [1, 1, 1, 2, 2, 2]
    page = run(round_.client, queue_reads.page(keys, State.DEAD))
    assert {row.payload.hex() for row in page.rows} == {case.payload for case in cases}
    assert all(b"on purpose" in row.error for row in page.rows)


@cell(6)
@each_codec
def test_java_takes_what_a_view_scheduled(round_: Round, codec: str) -> None:
    queue = round_.name(codec, "scheduled")
    if codec in ("LongCodec", "IntegerCodec", "DoubleCodec"):
        with pytest.raises(EncodeError, match=codec):
            Client().get(f"/schedule/{queue}/")
        return
    round_.call("hold", codec, "scheduled")

    job_id = Client().get(f"/schedule/{queue}/").content.decode()

    [taken] = round_.call("take", codec, "scheduled", count=1, timeout_ms=20_000)
    call = envelope_of(taken)
    assert call["delayq"] == job_id.rpartition(":")[2]
    # One string in every codec: what is signed stays as it is, however often it is read and written.
    assert json.loads(call["body"]) == {
        "task": "tests.interop.project.tasks.remind",
        "args": [42],
        "kwargs": {"text": "订单 😀"},
    }


@cell(6)
@each_codec
def test_java_takes_what_a_view_offered_as_the_type_that_the_codec_promises(
    round_: Round, codec: str
) -> None:
    case = round_.writable(codec)[-1]
    round_.call("hold", codec, "offered")

    is_typed = case.value is VALUES[case.label]
    label = case.label if is_typed else f"untyped {case.label}"
    response = Client().get(f"/offer/{round_.name(codec, 'offered')}/{label}/")

    assert response.content == b"offered"
    [taken] = round_.call("take", codec, "offered", count=1, timeout_ms=20_000)
    assert normal(taken) == case.promised


def envelope_of(description: Any) -> Any:
    """What a Java consumer makes of a job: JSON in a String or in bytes, or a map."""
    kind, content, *_ = description
    if kind == "String":
        return json.loads(content)
    if kind == "byte[]":
        return json.loads(bytes.fromhex(content))
    return _plain(description)


def _plain(description: Any) -> Any:
    kind, content, *_ = description
    if kind.endswith("Map"):
        return {_plain(key): _plain(item) for key, item in content}
    if kind.endswith("List"):
        return [_plain(item) for item in content]
    return int(content) if kind in ("Integer", "Long") else content


@cell(0)
@pytest.mark.parametrize(
    ("version", "codec"), [cell for cell in ALL if not is_supported(*cell)]
)
def test_an_unsupported_codec_is_refused_clearly_and_its_bytes_are_kept(
    round_: Round, codec: str
) -> None:
    description = ["String", "订单-1"]
    payload = round_.peer.call("encode", codec=java_name(codec), value=description)
    name = python_name(round_.version, codec)
    queue = round_.delayed(codec, "java-java")
    with pytest.raises(EncodeError, match=f"{name} is not supported"):
        queue.offer("x", 1)

    # We transfer what it wrote, whatever it is, and Java takes it.
    round_.call("offer", codec, "java-java", items=[[description, 5]] * 2)
    round_.call("destroy", codec, "java-java")
    [taken] = round_.call("take", codec, "java-java", count=1, timeout_ms=20_000)
    assert normal(taken) == description

    # And who takes it here is told, and has the bytes.
    with round_.blocking(codec, "java-java") as blocking:
        with pytest.raises(DecodeError, match=f"{name} is not supported") as refused:
            blocking.poll(20)
    assert refused.value.data.hex() == payload
    keys = DeliveryKeys.of(round_.name(codec, "java-java"))
    [row] = run(round_.client, queue_reads.page(keys, State.QUARANTINED)).rows
    assert row.payload.hex() == payload
    assert name.encode() in row.error
    queue.destroy()


def test_what_is_left_out_names_what_there_is() -> None:
    codecs = {python_name(*each) for each in ALL}
    for each in LEFT_OUT:
        assert each.codec in codecs
        assert each.how in ("read", "write")
        assert each.label in VALUES
