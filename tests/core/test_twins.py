"""Frames with the same eight bytes: their number was given out again, or somebody else has written it."""

import os

import pytest

from django_delayq.core import queue_reads
from django_delayq.core.states import State
from django_delayq.transport.run import run
from django_delayq.wire import frame as frames
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import FIRST, T0, Rig, names_of

each_format = pytest.mark.parametrize("frame_format", FrameFormat)


@pytest.fixture
def twins(rig: Rig, frame_format: FrameFormat, listed: bool) -> Rig:
    """Two pairs of frames, each pair with the same number, all with one start time."""
    rig.frame_format = frame_format
    rig.insertion_list = listed
    rig.schedule({"a": 500, "b": 500})
    rig.client.hset(rig.keys.counters, "number", FIRST)
    # The last frame in the list shows that a number was used, unless it is Java's.
    rig.schedule({"c": 500, "d": 500})
    rig.is_checked = False
    return rig


@each_format
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_cancel_takes_the_job_that_is_named_and_no_other(twins: Rig, name: str) -> None:
    assert twins.cancel(name) == "cancelled"

    twins.now = 500
    assert sorted(names_of(twins.claim())) == sorted({*"abcd"} - {name})


@each_format
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_reschedule_moves_the_job_that_is_named_and_no_other(
    twins: Rig, name: str
) -> None:
    assert twins.reschedule(name, 900) == ("rescheduled", 900)

    twins.now = 500
    assert sorted(names_of(twins.claim())) == sorted({*"abcd"} - {name})
    assert twins.inspect(name).score_ms == T0 + 900


@each_format
@pytest.mark.parametrize("listed", [True, False])
def test_many_are_cancelled_and_the_others_stay(twins: Rig) -> None:
    assert twins.cancel_many("bc") == {"b": "cancelled", "c": "cancelled"}

    twins.now = 500
    assert sorted(names_of(twins.claim())) == ["a", "d"]


@each_format
@pytest.mark.parametrize("lead", [b"", b"1", b"{"])
def test_forged_frame_with_the_bytes_of_a_job_is_not_taken_for_it(
    rig: Rig, frame_format: FrameFormat, lead: bytes
) -> None:
    rig.frame_format = frame_format
    rig.schedule({"a": 500}, insertion_list=False)
    (own,) = rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    parts = frames.unpack(own)
    assert parts is not None
    forged = frames.pack(parts.random_id, lead, frame_format)
    rig.client.zadd(rig.keys.queue.timeout_set, {forged: T0 + 500})
    rig.is_checked = False

    assert rig.cancel("a") == "cancelled"

    assert rig.client.zrange(rig.keys.queue.timeout_set, 0, -1) == [forged]
    assert rig.inspect("a").state is State.CANCELLED


def test_counter_that_was_lost_begins_above_what_it_has_given_out(rig: Rig) -> None:
    rig.schedule({f"j{n}": 500 for n in range(20)}, insertion_list=False)
    rig.client.delete(rig.keys.counters)
    rig.now = 10
    rig.schedule({"late": 500}, insertion_list=False)

    ids = [
        frames.unpack(member).random_id  # type: ignore[union-attr]
        for member in rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    ]
    assert len(set(ids)) == 21
    assert max(ids)[2:] == (FIRST + 40 + 1).to_bytes(6, "big")


@pytest.mark.parametrize("value", [2**44, 2**48 - 1, 2**53, 2**63 - 2, -5])
def test_counter_out_of_range_begins_anew(rig: Rig, value: int) -> None:
    rig.schedule({"a": 500}, insertion_list=False)
    rig.client.hset(rig.keys.counters, "number", value)
    rig.now = 10
    rig.schedule({"b": 500}, insertion_list=False)
    rig.schedule({"c": 500}, insertion_list=False)

    assert rig.cancel("b") == "cancelled"
    rig.now = 510
    assert names_of(rig.claim()) == ["a", "c"]
    counts = run(rig.client, queue_reads.counts(rig.keys))
    assert counts.counters["offered"] == 2


def test_repeated_claim_looks_at_no_lease_of_another(rig: Rig) -> None:
    names = {f"j{n:03}": 0 for n in range(300)}
    rig.schedule(names)
    rig.claim(290, owner=b"owner--2")
    rig.now = 5
    request = os.urandom(8)
    first = names_of(rig.claim(10, request=request))
    rig.client.config_resetstat()

    again = names_of(rig.claim(10, request=request))

    assert again == first
    read = rig.client.info("commandstats")["cmdstat_hget"]["calls"]
    assert read < 40


def test_few_that_are_large_are_left_to_the_whole_claim(rig: Rig) -> None:
    rig.schedule({"ready": 0}, insertion_list=False)
    rig.acknowledge(rig.lease())
    rig.schedule({"a": 5, "b": 5}, insertion_list=False)
    rig.schedule({f"large{n}": 6 for n in range(4)}, size=8_000, insertion_list=False)
    rig.now = 6

    assert rig.claim_few(8) is None

    assert len(rig.claim(8).jobs) == 6
