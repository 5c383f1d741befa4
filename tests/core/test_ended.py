"""The list of the jobs of a queue that ended last."""

import msgspec
import pytest

from django_delayq.core import bounds
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob
from django_delayq.features.ended.calls import (
    LINE_LIMIT,
    NAME_LIMIT,
    EndRecord,
    first_line,
)
from tests.core.rig import LEASE, T0, Rig, payload, token
from tests.core.tour import end_of


def names(records: list[EndRecord]) -> str:
    return "".join(record.token[0] for record in records)


def test_list_keeps_the_newest(rig: Rig) -> None:
    for n, name in enumerate("abcde"):
        rig.note_ended(end_of(name, T0 + n), keep=3)

    assert names(rig.ended()) == "edc"


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5])
def test_list_holds_exactly_what_is_kept_when_several_come_at_once(
    rig: Rig, keep: int
) -> None:
    rig.note_ended(end_of("x"), end_of("y"), keep=keep)

    rig.note_ended(
        *(end_of(name, T0 + n) for n, name in enumerate("abc", 1)), keep=keep
    )

    assert rig.client.llen(rig.keys.last_ended) == min(keep, 5)
    assert names(rig.ended())[:3] == "cba"[:keep]


def test_record_that_a_repeat_has_added_twice_is_read_once(rig: Rig) -> None:
    rig.note_ended(end_of("a"), end_of("b", T0 + 1))
    rig.note_ended(end_of("a"), end_of("b", T0 + 1))

    assert names(rig.ended()) == "ba"


def test_records_of_several_processes_are_read_in_the_order_of_their_ends(
    rig: Rig,
) -> None:
    rig.note_ended(end_of("a", T0 + 1), end_of("c", T0 + 3))
    rig.note_ended(end_of("b", T0 + 2), end_of("d", T0 + 4))

    assert names(rig.ended()) == "dcba"


def test_page_leaves_out_the_newest(rig: Rig) -> None:
    rig.note_ended(*(end_of(name, T0 + n) for n, name in enumerate("abcde")))

    assert names(rig.ended(first=1, count=2)) == "dc"
    assert names(rig.ended(first=4, count=9)) == "a"
    assert rig.ended(first=5) == []


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"text",
        b"\xc1",
        msgspec.msgpack.encode(["t", "task", "no such end", T0]),
        msgspec.msgpack.encode(["t", "task", "dead", "yesterday"]),
        msgspec.msgpack.encode(["t", "task", "dead", -1]),
        msgspec.msgpack.encode(["t", "task", "dead", 10**15]),
        msgspec.msgpack.encode([b"\xff", "task", "dead", T0]),
    ],
)
def test_record_that_nobody_of_us_has_written_is_left_out(
    rig: Rig, stored: bytes
) -> None:
    rig.note_ended(end_of("a"))
    rig.client.rpush(rig.keys.last_ended, stored)

    assert names(rig.ended()) == "a"


def test_record_of_a_later_version_is_read_as_far_as_this_one_knows_it(
    rig: Rig,
) -> None:
    later = [token("a"), "shop.mail", "dead", T0, 1.5, 2.5, 3, "why", "and more"]
    rig.client.rpush(rig.keys.last_ended, msgspec.msgpack.encode(later))

    assert rig.ended() == [
        EndRecord(token("a"), "shop.mail", State.DEAD, T0, 1.5, 2.5, 3, "why")
    ]


def test_cancelled_job_is_remembered_with_the_task_of_its_payload(rig: Rig) -> None:
    body = b',"body":"{\\"task\\":\\"shop.mail\\",\\"args\\":[]}"}'
    rig.send([NewJob(token("a"), "+5", "", payload("a")[:-1] + body)])
    rig.schedule({"b": 5})
    rig.now = 2

    assert rig.cancel("a", keep_ended=10) is Change.CANCELLED
    rig.now = 3
    rig.cancel("b", keep_ended=10)

    assert rig.ended() == [
        EndRecord(token("b"), "", State.CANCELLED, T0 + 3),
        EndRecord(token("a"), "shop.mail", State.CANCELLED, T0 + 2),
    ]


def test_cancel_of_many_remembers_no_more_than_is_kept(rig: Rig) -> None:
    rig.schedule(dict.fromkeys("abcde", 5))

    rig.cancel_many("abcde", keep_ended=3)

    assert rig.client.llen(rig.keys.last_ended) == 3


def test_cancel_that_finds_no_job_remembers_nothing(rig: Rig) -> None:
    rig.cancel("a", keep_ended=3)

    assert rig.ended() == []


def test_job_that_lost_its_worker_too_often_is_remembered(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.claim(1, max_kills=0)
    rig.now = LEASE + 1

    rig.claim(1, max_kills=0, keeps_ended=True)

    (end,) = rig.ended()
    assert (end.token, end.outcome, end.ended_ms) == (
        token("a"),
        State.DEAD,
        T0 + rig.now,
    )
    assert end.error == "its worker died or lost the lease 1 times while it ran"


def test_job_that_was_held_for_too_long_is_remembered(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.hold(rig.lease(), hold_ms=5)
    rig.now = 10

    rig.release(keeps_ended=True)

    (end,) = rig.ended()
    assert (end.token, end.outcome) == (token("a"), State.QUARANTINED)
    assert end.error.startswith("no task shop.new.")


def test_key_of_another_type_keeps_no_job_from_ending(rig: Rig) -> None:
    rig.client.set(rig.keys.last_ended, "mine")
    rig.schedule({"a": 0, "b": 0, "c": 50_000})
    rig.claim(1, max_kills=0)
    rig.hold(rig.lease(), hold_ms=5)
    rig.now = LEASE + 1

    rig.claim(1, max_kills=0, keeps_ended=True)
    rig.release(keeps_ended=True)
    rig.cancel("c", keep_ended=10)

    assert rig.inspect("a").state is State.DEAD
    assert rig.inspect("b").state is State.QUARANTINED
    assert rig.inspect("c").state is State.CANCELLED
    assert rig.client.get(rig.keys.last_ended) == b"mine"


@pytest.mark.parametrize("why", ["é" * 300, "x" + "é" * 300, "語" * 300, "a\nb" * 99])
def test_long_error_is_cut_to_text(rig: Rig, why: str) -> None:
    rig.schedule({"a": 0})
    leased = rig.lease()
    rig.hold(leased, task="t", hold_ms=5)
    written = {"error": why, "reason": Reason(Kind.TASK, "t").text}
    rig.client.hset(rig.keys.errors, token("a"), msgspec.json.encode(written))
    rig.now = 10

    rig.release(keeps_ended=True)

    (end,) = rig.ended()
    assert len(end.error) <= LINE_LIMIT
    assert "\n" not in end.error


def test_largest_record_is_small() -> None:
    end = EndRecord(
        token("a"),
        "語" * NAME_LIMIT,
        State.QUARANTINED,
        bounds.LATEST_MS,
        0.1,
        0.1,
        1_000_000,
        first_line("語" * 5_000 + "\nmore"),
    )

    assert len(msgspec.msgpack.encode(end)) < 1_300
