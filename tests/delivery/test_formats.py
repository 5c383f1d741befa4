"""The format of a queue: it rises when all its workers read a later one, or by a command; older workers get nothing."""

import pytest

from django_delayq.delivery import claiming, upgrading
from django_delayq.delivery.upgrading import ENROLLED_MS, Enrolled, FormatSet, Step
from django_delayq.exceptions import NewerFormat
from django_delayq.wire import signing
from tests.delivery.rig import T0, Rig, names_of

OLD, NEW, OTHER = b"owner--1", b"owner--2", b"owner--3"


def enroll(rig: Rig, owner: bytes, reads: int) -> Enrolled:
    now_us = round((T0 + rig.now) * 1000)
    call = upgrading.enroll(rig.keys, owner=owner, reads=reads, now_us=now_us)
    return rig.run(call)._replace(before_ms=0, now_ms=0)


def test_server_says_when_it_took_a_process_before(rig):
    times = [
        rig.run(upgrading.enroll(rig.keys, owner=OLD, reads=1, now_us=now_us))[3:]
        for now_us in (2_000_000, 3_000_999)
    ]
    rig.client.delete(rig.keys.control)
    again = upgrading.enroll(rig.keys, owner=OLD, reads=1, now_us=4_000_000)

    assert times == [(0, 2_000), (2_000, 3_000)]
    assert rig.run(again)[3:] == (0, 4_000)


def choose(rig: Rig, format: int, step: Step = Step.BEGIN) -> FormatSet:
    now_us = round((T0 + rig.now) * 1000)
    return rig.run(upgrading.set_format(rig.keys, format, step, now_us=now_us))


def written(rig: Rig) -> int:
    return rig.run(upgrading.read_format(rig.keys)).written


def control(rig: Rig) -> dict[bytes, bytes]:
    """Return what the server keeps about formats."""
    fields = rig.client.hgetall(rig.keys.control)
    return {name: value for name, value in fields.items() if name != b"service"}


@pytest.fixture(autouse=True)
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the caller be of a version that reads format 1 only."""
    monkeypatch.setattr(signing, "FORMAT", 1)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, earlier: None) -> None:
    """Let the caller be of a version that reads format 2."""
    monkeypatch.setattr(signing, "FORMAT", 2)


def test_queue_that_nobody_has_raised_is_in_the_first_format(rig):
    assert written(rig) == 1
    assert enroll(rig, OLD, 1) == Enrolled(1, 0, 0)


def test_queue_is_raised_when_the_last_old_worker_leaves(rig):
    enroll(rig, OLD, 1)
    assert enroll(rig, NEW, 2) == Enrolled(1, 1, 0)
    assert enroll(rig, OLD, 1) == Enrolled(1, 0, 0)
    rig.run(claiming.leave(rig.keys, owner=OLD))

    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)

    assert written(rig) == 2
    assert enroll(rig, OLD, 1) == Enrolled(2, 0, 0)


def test_queue_goes_to_the_latest_format_that_all_read(rig):
    enroll(rig, OLD, 2)
    enroll(rig, OTHER, 3)

    assert enroll(rig, NEW, 4) == Enrolled(2, 2, 0)
    assert enroll(rig, OLD, 4).format == 3


def test_worker_that_died_is_waited_for_no_longer_than_its_word_counts(rig):
    enroll(rig, OLD, 1)
    rig.now += ENROLLED_MS
    assert enroll(rig, NEW, 2) == Enrolled(1, 1, 0)
    rig.now += 1

    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)

    assert b"reads:" + OLD not in control(rig)


def test_clock_that_was_set_back_makes_no_worker_immortal(rig):
    rig.now += ENROLLED_MS + 1
    enroll(rig, OLD, 1)
    rig.now = 0

    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)


@pytest.mark.parametrize("value", [b"", b"x", b"5", b"-1 1", b"1 2 3", b"\xff 1"])
def test_what_somebody_else_wrote_stops_nothing(rig, value):
    rig.client.hset(rig.keys.control, b"reads:" + OLD, value)
    rig.client.hset(rig.keys.control, "format", b"none")
    rig.schedule({"a": 0})

    assert names_of(rig.claim()) == ["a"]
    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)


def test_thousand_processes_that_died_are_forgotten_at_once(rig):
    for n in range(1_000):
        enroll(rig, b"%08d" % n, 1)
    rig.now += ENROLLED_MS + 1

    assert enroll(rig, NEW, 2).format == 2

    assert len(control(rig)) == 2


def test_worker_gets_nothing_of_a_queue_that_is_later_than_it_reads(rig):
    rig.schedule({"a": 0})
    choose(rig, 1)
    rig.client.hset(rig.keys.control, "format", 2)
    before = rig.client.hgetall(rig.keys.control)

    claimed = rig.claim()

    assert (names_of(claimed), claimed.newer_format, claimed.wait_us) == ([], 2, -1)
    assert rig.client.hgetall(rig.keys.control) == before
    rig.client.hset(rig.keys.control, "format", 1)
    assert names_of(rig.claim()) == ["a"]


def test_who_reads_less_transfers_nothing(rig):
    rig.schedule({"a": 0})
    rig.client.hset(rig.keys.control, "format", 2)
    before = rig.state()

    with pytest.raises(NewerFormat, match="is in format 2, and this version reads up"):
        rig.transfer()

    assert rig.state() == before
    rig.client.hset(rig.keys.control, "format", 1)
    assert rig.transfer().moved == 1


def test_what_was_claimed_before_can_be_ended_by_who_reads_less(rig):
    rig.schedule({"a": 0, "b": 0, "c": 0})
    jobs = {job.token[0]: job for job in rig.claim().jobs}
    rig.client.hset(rig.keys.control, "format", 2)

    assert rig.renew(*jobs.values()) == []
    assert rig.acknowledge(jobs["a"]) == []
    assert rig.retry(jobs["b"]) == []
    assert rig.give_back(jobs["c"]) == []
    assert names_of(rig.claim()) == []


def test_command_raises_a_queue_that_nobody_works_on(rig, later):
    assert choose(rig, 2) == FormatSet(1, 0)

    assert control(rig) == {b"format": b"2"}


def test_queue_is_not_raised_above_what_workers_read_unless_forced(rig, later):
    enroll(rig, OLD, 1)
    enroll(rig, OTHER, 1)
    enroll(rig, NEW, 2)

    assert choose(rig, 2) == FormatSet(1, 2)

    assert written(rig) == 1
    assert choose(rig, 2, Step.FORCE) == FormatSet(1, 2)
    assert written(rig) == 2
    # It is stored already, and stays.
    assert choose(rig, 2) == FormatSet(2, 2)
    assert control(rig)[b"format"] == b"2"


def test_going_back_begins_with_what_is_written_and_ends_with_what_is_read(rig, later):
    choose(rig, 2)
    enroll(rig, NEW, 2)

    assert choose(rig, 1) == FormatSet(2, 0)

    assert written(rig) == 1
    assert control(rig)[b"format"] == b"2"
    assert choose(rig, 1, Step.END) == FormatSet(2, 0)
    assert control(rig)[b"format"] == b"1"


def test_queue_that_a_command_took_back_stays_until_a_command_says_otherwise(
    rig, later
):
    choose(rig, 2)
    choose(rig, 1)
    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 1)
    choose(rig, 1, Step.END)
    assert enroll(rig, NEW, 2) == Enrolled(1, 0, 1)
    assert written(rig) == 1

    choose(rig, 2)

    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)
    assert written(rig) == 2


def test_version_that_knows_no_later_format_leaves_the_choice_to_workers(
    rig, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(signing, "FORMAT", 2)
        choose(rig, 2)
        choose(rig, 1)
        choose(rig, 1, Step.END)

    choose(rig, 1)

    assert enroll(rig, NEW, 2) == Enrolled(2, 0, 0)


def test_end_of_going_back_that_somebody_else_has_overtaken_changes_nothing(rig, later):
    choose(rig, 2)
    choose(rig, 1)
    choose(rig, 2)

    choose(rig, 1, Step.END)

    assert control(rig) == {b"format": b"2"}


def test_version_that_does_not_read_the_queue_changes_nothing(rig):
    rig.client.hset(rig.keys.control, "format", 2)

    for step in Step:
        assert choose(rig, 1, step) == FormatSet(2, 0)

    assert control(rig) == {b"format": b"2"}


@pytest.mark.parametrize("owner", [b"\0" * 8, b"\xff\n\r \x00:%s", bytes(range(8))])
def test_owner_is_any_eight_bytes(rig, owner):
    enroll(rig, owner, 1)

    assert enroll(rig, NEW, 2).behind == 1
