"""Both layouts of a locator: 21 bytes and the unique key, and the 33 that a version before wrote."""

import struct
from collections.abc import Callable

import pytest

from django_delayq.delivery.claiming import Mode
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Bench,
    mac,
    names_of,
    token,
)

MARKS = {0: bytes(8), 1: UNLISTED, 2: LISTED, 3: b"\xff" * 8}


def widen(locator: bytes) -> bytes:
    """Return a locator as the version before wrote it."""
    kind = locator[8]
    assert 16 <= kind < 28
    free = MARKS[kind % 4]
    if len(free) == 2:
        free += locator[9:15]
    due = int.from_bytes(locator[15:21], "big")
    digits = locator[:8].hex().encode()
    return struct.pack("<dB8s16s", due, kind // 4 - 4, free, digits) + locator[21:]


def widen_all(bench: Bench) -> None:
    for field, value in bench.client.hgetall(bench.keys.locators).items():
        bench.client.hset(bench.keys.locators, field, widen(value))


def keep(bench: Bench) -> None:
    """Leave locators as they are written now."""


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("unique", ["", "ekey"])
def test_locator_is_mac_kind_number_start_time_and_unique_key(
    bench: Bench, frame_format: FrameFormat, listed: bool, unique: str
) -> None:
    options = {"frame_format": frame_format, "insertion_list": listed}
    bench.schedule({"before": 1}, **options)  # type: ignore[arg-type]
    bench.schedule({"a": 700}, unique=unique, **options)  # type: ignore[arg-type]

    assert bench.client.hget(bench.keys.locators, token("a")) == b"".join(
        [
            bytes.fromhex(mac("a")[:16]),
            bytes([16 + 4 * frame_format.number + (2 if listed else 1)]),
            (FIRST + 2).to_bytes(6, "big"),
            (T0 + 700).to_bytes(6, "big"),
            unique.encode(),
        ]
    )


LAYOUTS = pytest.mark.parametrize("layout", [keep, widen_all])


@LAYOUTS
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("unique", ["", "ekey"])
@pytest.mark.parametrize("frame_format", FrameFormat)
def test_job_is_found_moved_claimed_and_ended_by_either_layout(
    bench: Bench,
    layout: Callable[[Bench], None],
    frame_format: FrameFormat,
    listed: bool,
    unique: str,
) -> None:
    bench.frame_format = frame_format
    bench.schedule({"before": 1}, insertion_list=listed)
    bench.schedule({"a": 700}, unique=unique, insertion_list=listed)
    layout(bench)

    assert bench.inspect("a").start_time_ms == T0 + 700
    assert bench.reschedule("a", 300)[0] == "rescheduled"
    layout_again(bench, layout)
    bench.now = 300
    claimed = bench.claim()

    assert names_of(claimed) == ["before", "a"]
    assert [job.is_foreign for job in claimed.jobs] == [False, False]
    bench.acknowledge(*claimed.jobs)
    assert bench.state() == {}
    assert bench.client.exists(bench.keys.unique) == 0


def layout_again(bench: Bench, layout: Callable[[Bench], None]) -> None:
    """Bring what was written meanwhile into the layout as well."""
    if layout is widen_all:
        for field, value in bench.client.hgetall(bench.keys.locators).items():
            if len(value) < 33 or value[8] >= 16:
                bench.client.hset(bench.keys.locators, field, widen(value))


@LAYOUTS
@pytest.mark.parametrize("unique", ["", "ekey"])
def test_job_is_cancelled_by_either_layout(
    bench: Bench, layout: Callable[[Bench], None], unique: str
) -> None:
    bench.schedule({"before": 1, "a": 700}, unique="")
    bench.schedule({"u": 700}, unique=unique)
    layout(bench)

    assert [bench.cancel(name) for name in ("a", "u")] == ["cancelled"] * 2

    assert bench.state()["timeout_set"] == [("before", 1)]
    assert bench.client.exists(bench.keys.unique) == 0


@LAYOUTS
def test_transferred_job_is_leased_as_itself_by_either_layout(
    bench: Bench, layout: Callable[[Bench], None]
) -> None:
    bench.schedule({"before": 0, "a": 0})
    layout(bench)
    bench.transfer()
    layout_again(bench, layout)

    claimed = bench.claim(mode=Mode.SHARED)

    assert [job.is_foreign for job in claimed.jobs] == [False, False]
    assert sorted(names_of(claimed)) == ["a", "before"]


@LAYOUTS
def test_repeat_finds_the_job_by_either_layout(
    bench: Bench, layout: Callable[[Bench], None]
) -> None:
    bench.schedule({"before": 1})
    bench.schedule({"a": 700})
    layout(bench)
    bench.now = 50

    (reply,) = bench.schedule({"a": 700}, again=True)

    assert reply.start_time_ms == 700
    assert bench.counters()["offered"] == 2


@pytest.mark.parametrize("due", [2**48 - 1, 2**48, 2**53 - 1])
def test_start_time_beyond_six_bytes_is_kept_in_the_wider_layout(
    bench: Bench, due: int
) -> None:
    bench.schedule({"before": 1})
    bench.schedule({"a": f"={due}"})

    size = len(bench.client.hget(bench.keys.locators, token("a")) or b"")
    assert size == (21 if due < 2**48 else 33)
    assert bench.inspect("a").start_time_ms == due
    assert bench.cancel("a") == "cancelled"


@pytest.mark.parametrize("size", [0, 8, 20, 21, 32])
@pytest.mark.parametrize("kind", [3, 15, 28, 255])
def test_bytes_that_are_neither_layout_are_no_locator(
    bench: Bench, size: int, kind: int
) -> None:
    bench.schedule({"before": 1})
    spoilt = (b"\0" * 8 + bytes([kind]) + b"\0" * 24)[:size]
    bench.client.hset(bench.keys.locators, token("a"), spoilt)

    assert bench.inspect("a").state == "missing"
    bench.is_checked = False  # no job is there
