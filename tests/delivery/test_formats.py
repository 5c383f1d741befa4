"""The format of a queue: raised when all its workers read a later one, or as a command says; older workers get nothing."""

import pytest

from django_delayq.delivery import claiming, upgrading
from django_delayq.delivery.upgrading import ENROLLED_MS, Enrolled, FormatSet, Step
from django_delayq.exceptions import NewerFormat
from django_delayq.wire import signing
from tests.delivery.bench import T0, Bench, names_of

OLD, NEW, OTHER = b"owner--1", b"owner--2", b"owner--3"


def enroll(bench: Bench, owner: bytes, reads: int) -> Enrolled:
    now_us = round((T0 + bench.now) * 1000)
    return bench.run(
        upgrading.enroll(bench.keys, owner=owner, reads=reads, now_us=now_us)
    )


def choose(bench: Bench, format: int, step: Step = Step.BEGIN) -> FormatSet:
    now_us = round((T0 + bench.now) * 1000)
    return bench.run(upgrading.set_format(bench.keys, format, step, now_us=now_us))


def written(bench: Bench) -> int:
    return bench.run(upgrading.read_format(bench.keys)).written


def control(bench: Bench) -> dict[bytes, bytes]:
    """Return what the server keeps of formats."""
    fields = bench.client.hgetall(bench.keys.control)
    return {name: value for name, value in fields.items() if name != b"service"}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks is of a version that reads format 2."""
    monkeypatch.setattr(signing, "FORMAT", 2)


def test_queue_that_nobody_has_raised_is_in_the_first_format(bench):
    assert written(bench) == 1
    assert enroll(bench, OLD, 1) == Enrolled(1, 0, 0)


def test_queue_is_raised_when_the_last_old_worker_leaves(bench):
    enroll(bench, OLD, 1)
    assert enroll(bench, NEW, 2) == Enrolled(1, 1, 0)
    assert enroll(bench, OLD, 1) == Enrolled(1, 0, 0)
    bench.run(claiming.leave(bench.keys, owner=OLD))

    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)

    assert written(bench) == 2
    assert enroll(bench, OLD, 1) == Enrolled(2, 0, 0)


def test_queue_goes_to_the_latest_format_that_all_read(bench):
    enroll(bench, OLD, 2)
    enroll(bench, OTHER, 3)

    assert enroll(bench, NEW, 4) == Enrolled(2, 2, 0)
    assert enroll(bench, OLD, 4).format == 3


def test_worker_that_died_is_waited_for_no_longer_than_its_word_counts(bench):
    enroll(bench, OLD, 1)
    bench.now += ENROLLED_MS
    assert enroll(bench, NEW, 2) == Enrolled(1, 1, 0)
    bench.now += 1

    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)

    assert b"reads:" + OLD not in control(bench)


def test_clock_that_was_set_back_makes_no_worker_immortal(bench):
    bench.now += ENROLLED_MS + 1
    enroll(bench, OLD, 1)
    bench.now = 0

    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)


@pytest.mark.parametrize("value", [b"", b"x", b"5", b"-1 1", b"1 2 3", b"\xff 1"])
def test_what_somebody_else_wrote_stops_nothing(bench, value):
    bench.client.hset(bench.keys.control, b"reads:" + OLD, value)
    bench.client.hset(bench.keys.control, "format", b"none")
    bench.schedule({"a": 0})

    assert names_of(bench.claim()) == ["a"]
    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)


def test_thousand_processes_that_died_are_forgotten_at_once(bench):
    for n in range(1_000):
        enroll(bench, b"%08d" % n, 1)
    bench.now += ENROLLED_MS + 1

    assert enroll(bench, NEW, 2).format == 2

    assert len(control(bench)) == 2


def test_worker_gets_nothing_of_a_queue_that_is_later_than_it_reads(bench):
    bench.schedule({"a": 0})
    choose(bench, 1)
    bench.client.hset(bench.keys.control, "format", 2)
    before = bench.client.hgetall(bench.keys.control)

    claimed = bench.claim()

    assert (names_of(claimed), claimed.newer_format, claimed.wait_us) == ([], 2, -1)
    assert bench.client.hgetall(bench.keys.control) == before
    bench.client.hset(bench.keys.control, "format", 1)
    assert names_of(bench.claim()) == ["a"]


def test_who_reads_less_transfers_nothing(bench):
    bench.schedule({"a": 0})
    bench.client.hset(bench.keys.control, "format", 2)
    before = bench.state()

    with pytest.raises(NewerFormat, match="is in format 2, and this version reads up"):
        bench.transfer()

    assert bench.state() == before
    bench.client.hset(bench.keys.control, "format", 1)
    assert bench.transfer().moved == 1


def test_what_was_claimed_before_can_be_ended_by_who_reads_less(bench):
    bench.schedule({"a": 0, "b": 0, "c": 0})
    jobs = {job.token[0]: job for job in bench.claim().jobs}
    bench.client.hset(bench.keys.control, "format", 2)

    assert bench.renew(*jobs.values()) == []
    assert bench.acknowledge(jobs["a"]) == []
    assert bench.retry(jobs["b"]) == []
    assert bench.give_back(jobs["c"]) == []
    assert names_of(bench.claim()) == []


def test_command_raises_a_queue_that_nobody_works_on(bench, later):
    assert choose(bench, 2) == FormatSet(1, 0)

    assert control(bench) == {b"format": b"2"}


def test_queue_is_not_raised_above_what_workers_read_unless_forced(bench, later):
    enroll(bench, OLD, 1)
    enroll(bench, OTHER, 1)
    enroll(bench, NEW, 2)

    assert choose(bench, 2) == FormatSet(1, 2)

    assert written(bench) == 1
    assert choose(bench, 2, Step.FORCE) == FormatSet(1, 2)
    assert written(bench) == 2
    # It is there already, and stays.
    assert choose(bench, 2) == FormatSet(2, 2)
    assert control(bench)[b"format"] == b"2"


def test_going_back_begins_with_what_is_written_and_ends_with_what_is_read(
    bench, later
):
    choose(bench, 2)
    enroll(bench, NEW, 2)

    assert choose(bench, 1) == FormatSet(2, 0)

    assert written(bench) == 1
    assert control(bench)[b"format"] == b"2"
    assert choose(bench, 1, Step.END) == FormatSet(2, 0)
    assert control(bench)[b"format"] == b"1"


def test_queue_that_a_command_took_back_stays_until_a_command_says_otherwise(
    bench, later
):
    choose(bench, 2)
    choose(bench, 1)
    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 1)
    choose(bench, 1, Step.END)
    assert enroll(bench, NEW, 2) == Enrolled(1, 0, 1)
    assert written(bench) == 1

    choose(bench, 2)

    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)
    assert written(bench) == 2


def test_version_that_knows_no_later_format_leaves_the_choice_to_workers(
    bench, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(signing, "FORMAT", 2)
        choose(bench, 2)
        choose(bench, 1)
        choose(bench, 1, Step.END)

    choose(bench, 1)

    assert enroll(bench, NEW, 2) == Enrolled(2, 0, 0)


def test_end_of_going_back_that_somebody_else_has_overtaken_changes_nothing(
    bench, later
):
    choose(bench, 2)
    choose(bench, 1)
    choose(bench, 2)

    choose(bench, 1, Step.END)

    assert control(bench) == {b"format": b"2"}


def test_version_that_does_not_read_the_queue_changes_nothing(bench):
    bench.client.hset(bench.keys.control, "format", 2)

    for step in Step:
        assert choose(bench, 1, step) == FormatSet(2, 0)

    assert control(bench) == {b"format": b"2"}


@pytest.mark.parametrize("owner", [b"\0" * 8, b"\xff\n\r \x00:%s", bytes(range(8))])
def test_owner_is_any_eight_bytes(bench, owner):
    enroll(bench, owner, 1)

    assert enroll(bench, NEW, 2).behind == 1
