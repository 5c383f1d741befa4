"""Both layouts of a locator: 21 bytes and the unique key, and the 33 bytes that an earlier version wrote."""

import struct
from collections.abc import Callable

import pytest

from django_delayq.core.claim import Mode
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import (
    FIRST,
    LISTED,
    T0,
    UNLISTED,
    Rig,
    mac,
    names_of,
    token,
)

MARKS = {0: bytes(8), 1: UNLISTED, 2: LISTED, 3: b"\xff" * 8}


def widen(locator: bytes) -> bytes:
    """Return a locator as the earlier version wrote it."""
    kind = locator[8]
    assert 16 <= kind < 28
    free = MARKS[kind % 4]
    if len(free) == 2:
        free += locator[9:15]
    due = int.from_bytes(locator[15:21], "big")
    digits = locator[:8].hex().encode()
    return struct.pack("<dB8s16s", due, kind // 4 - 4, free, digits) + locator[21:]


def widen_all(rig: Rig) -> None:
    for field, value in rig.client.hgetall(rig.keys.locators).items():
        rig.client.hset(rig.keys.locators, field, widen(value))


def keep(rig: Rig) -> None:
    """Leave locators as they are written now."""


@pytest.mark.parametrize("frame_format", FrameFormat)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("unique", ["", "ekey"])
def test_locator_is_mac_kind_number_start_time_and_unique_key(
    rig: Rig, frame_format: FrameFormat, listed: bool, unique: str
) -> None:
    options = {"frame_format": frame_format, "insertion_list": listed}
    rig.schedule({"before": 1}, **options)  # type: ignore[arg-type]
    rig.schedule({"a": 700}, unique=unique, **options)  # type: ignore[arg-type]

    assert rig.client.hget(rig.keys.locators, token("a")) == b"".join(
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
    rig: Rig,
    layout: Callable[[Rig], None],
    frame_format: FrameFormat,
    listed: bool,
    unique: str,
) -> None:
    rig.frame_format = frame_format
    rig.schedule({"before": 1}, insertion_list=listed)
    rig.schedule({"a": 700}, unique=unique, insertion_list=listed)
    layout(rig)

    assert rig.inspect("a").start_time_ms == T0 + 700
    assert rig.reschedule("a", 300)[0] == "rescheduled"
    layout_again(rig, layout)
    rig.now = 300
    claimed = rig.claim()

    assert names_of(claimed) == ["before", "a"]
    assert [job.is_foreign for job in claimed.jobs] == [False, False]
    rig.acknowledge(*claimed.jobs)
    assert rig.state() == {}
    assert rig.client.exists(rig.keys.unique) == 0


def layout_again(rig: Rig, layout: Callable[[Rig], None]) -> None:
    """Bring locators written meanwhile into the layout as well."""
    if layout is widen_all:
        for field, value in rig.client.hgetall(rig.keys.locators).items():
            if len(value) < 33 or value[8] >= 16:
                rig.client.hset(rig.keys.locators, field, widen(value))


@LAYOUTS
@pytest.mark.parametrize("unique", ["", "ekey"])
def test_job_is_cancelled_by_either_layout(
    rig: Rig, layout: Callable[[Rig], None], unique: str
) -> None:
    rig.schedule({"before": 1, "a": 700}, unique="")
    rig.schedule({"u": 700}, unique=unique)
    layout(rig)

    assert [rig.cancel(name) for name in ("a", "u")] == ["cancelled"] * 2

    assert rig.state()["timeout_set"] == [("before", 1)]
    assert rig.client.exists(rig.keys.unique) == 0


@LAYOUTS
def test_transferred_job_is_leased_as_itself_by_either_layout(
    rig: Rig, layout: Callable[[Rig], None]
) -> None:
    rig.schedule({"before": 0, "a": 0})
    layout(rig)
    rig.transfer()
    layout_again(rig, layout)

    claimed = rig.claim(mode=Mode.SHARED)

    assert [job.is_foreign for job in claimed.jobs] == [False, False]
    assert sorted(names_of(claimed)) == ["a", "before"]


@LAYOUTS
def test_repeat_finds_the_job_by_either_layout(
    rig: Rig, layout: Callable[[Rig], None]
) -> None:
    rig.schedule({"before": 1})
    rig.schedule({"a": 700})
    layout(rig)
    rig.now = 50

    (reply,) = rig.schedule({"a": 700}, again=True)

    assert reply.start_time_ms == 700
    assert rig.counters()["offered"] == 2


@pytest.mark.parametrize("due", [2**48 - 1, 2**48, 2**53 - 1])
def test_start_time_beyond_six_bytes_is_kept_in_the_wider_layout(
    rig: Rig, due: int
) -> None:
    rig.schedule({"before": 1})
    rig.schedule({"a": f"={due}"})

    size = len(rig.client.hget(rig.keys.locators, token("a")) or b"")
    assert size == (21 if due < 2**48 else 33)
    assert rig.inspect("a").start_time_ms == due
    assert rig.cancel("a") == "cancelled"


@pytest.mark.parametrize("size", [0, 8, 20, 21, 32])
@pytest.mark.parametrize("kind", [3, 15, 28, 255])
def test_bytes_that_are_neither_layout_are_no_locator(
    rig: Rig, size: int, kind: int
) -> None:
    rig.schedule({"before": 1})
    spoilt = (b"\0" * 8 + bytes([kind]) + b"\0" * 24)[:size]
    rig.client.hset(rig.keys.locators, token("a"), spoilt)

    assert rig.inspect("a").state == "missing"
    rig.is_checked = False  # no job is there
