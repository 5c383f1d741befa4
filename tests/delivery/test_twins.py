"""Frames with the same eight bytes: numbers that were given out again, or that somebody else has written."""

import os

import pytest

from django_delayq.calls.call import run
from django_delayq.delivery import looking
from django_delayq.delivery.states import State
from django_delayq.wire import frame as frames
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import FIRST, T0, Bench, names_of

each_format = pytest.mark.parametrize("frame_format", FrameFormat)


@pytest.fixture
def twins(bench: Bench, frame_format: FrameFormat, listed: bool) -> Bench:
    """Two pairs, each of the same number, all with one start time."""
    bench.frame_format = frame_format
    bench.insertion_list = listed
    bench.schedule({"a": 500, "b": 500})
    bench.client.hset(bench.keys.counters, "number", FIRST)
    # What is in the list says that the number was used, but not where the last frame there is Java's.
    bench.schedule({"c": 500, "d": 500})
    bench.is_checked = False
    return bench


@each_format
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_cancel_takes_the_job_that_is_named_and_no_other(
    twins: Bench, name: str
) -> None:
    assert twins.cancel(name) == "cancelled"

    twins.now = 500
    assert sorted(names_of(twins.claim())) == sorted({*"abcd"} - {name})


@each_format
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_reschedule_moves_the_job_that_is_named_and_no_other(
    twins: Bench, name: str
) -> None:
    assert twins.reschedule(name, 900) == ("rescheduled", 900)

    twins.now = 500
    assert sorted(names_of(twins.claim())) == sorted({*"abcd"} - {name})
    assert twins.inspect(name).score_ms == T0 + 900


@each_format
@pytest.mark.parametrize("listed", [True, False])
def test_many_are_cancelled_and_the_others_stay(twins: Bench) -> None:
    assert twins.cancel_many("bc") == {"b": "cancelled", "c": "cancelled"}

    twins.now = 500
    assert sorted(names_of(twins.claim())) == ["a", "d"]


@each_format
@pytest.mark.parametrize("lead", [b"", b"1", b"{"])
def test_forged_frame_with_the_bytes_of_a_job_is_not_taken_for_it(
    bench: Bench, frame_format: FrameFormat, lead: bytes
) -> None:
    bench.frame_format = frame_format
    bench.schedule({"a": 500}, insertion_list=False)
    (own,) = bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
    parts = frames.unpack(own)
    assert parts is not None
    forged = frames.pack(parts.random_id, lead, frame_format)
    bench.client.zadd(bench.keys.queue.timeout_set, {forged: T0 + 500})
    bench.is_checked = False

    assert bench.cancel("a") == "cancelled"

    assert bench.client.zrange(bench.keys.queue.timeout_set, 0, -1) == [forged]
    assert bench.inspect("a").state is State.CANCELLED


def test_counter_that_was_lost_begins_above_what_it_has_given_out(bench: Bench) -> None:
    bench.schedule({f"j{n}": 500 for n in range(20)}, insertion_list=False)
    bench.client.delete(bench.keys.counters)
    bench.now = 10
    bench.schedule({"late": 500}, insertion_list=False)

    ids = [
        frames.unpack(member).random_id  # type: ignore[union-attr]
        for member in bench.client.zrange(bench.keys.queue.timeout_set, 0, -1)
    ]
    assert len(set(ids)) == 21
    assert max(ids)[2:] == (FIRST + 40 + 1).to_bytes(6, "big")


@pytest.mark.parametrize("value", [2**44, 2**48 - 1, 2**53, 2**63 - 2, -5])
def test_counter_out_of_range_begins_anew(bench: Bench, value: int) -> None:
    bench.schedule({"a": 500}, insertion_list=False)
    bench.client.hset(bench.keys.counters, "number", value)
    bench.now = 10
    bench.schedule({"b": 500}, insertion_list=False)
    bench.schedule({"c": 500}, insertion_list=False)

    assert bench.cancel("b") == "cancelled"
    bench.now = 510
    assert names_of(bench.claim()) == ["a", "c"]
    counts = run(bench.client, looking.counts(bench.keys))
    assert counts.counters["offered"] == 2


def test_repeated_claim_looks_at_no_lease_of_another(bench: Bench) -> None:
    names = {f"j{n:03}": 0 for n in range(300)}
    bench.schedule(names)
    bench.claim(290, owner=b"owner--2")
    bench.now = 5
    request = os.urandom(8)
    first = names_of(bench.claim(10, request=request))
    bench.client.config_resetstat()

    again = names_of(bench.claim(10, request=request))

    assert again == first
    read = bench.client.info("commandstats")["cmdstat_hget"]["calls"]
    assert read < 40


def test_few_that_are_large_are_left_to_the_whole_claim(bench: Bench) -> None:
    bench.schedule({"ready": 0}, insertion_list=False)
    bench.acknowledge(bench.lease())
    bench.schedule({"a": 5, "b": 5}, insertion_list=False)
    bench.schedule({f"large{n}": 6 for n in range(4)}, size=8_000, insertion_list=False)
    bench.now = 6

    assert bench.claim_few(8) is None

    assert len(bench.claim(8).jobs) == 6
