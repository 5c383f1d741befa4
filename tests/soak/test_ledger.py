"""The ledger of a soak knows what became of each job."""

from pathlib import Path

import pytest

from benchmarks.soak.kinds import NUMBERS
from benchmarks.soak.ledger import Event, Recorder
from tests.soak.written import DUE_MS, LATE_MS, Written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_ledger_in_which_all_is_well(written: Written) -> None:
    written.all_is_well()

    ledger = written.ledger
    ledger.read()

    assert ledger.waiting == set()
    assert ledger.doubled() == ([], [])
    assert (ledger.early, ledger.dead(), ledger.unknown()) == (0, 1, 0)
    # The follower has no start time of its own.
    assert list(ledger.late_ms) == [LATE_MS] * 5
    assert ledger.attempts == 1 + 3 + 2 + 1 + 2 + 20
    assert ledger.events[Event.STORED] == 7


def test_job_waits_until_its_task_has_done_its_work(written: Written) -> None:
    ledger = written.ledger

    written.store(1, "do_nothing")
    ledger.read()
    assert ledger.waiting == {1}
    written.start(1, "do_nothing")
    ledger.read()
    assert ledger.waiting == {1}
    written.finish(1, "do_nothing")
    ledger.read()
    assert ledger.waiting == set()


def test_job_that_dies_waits_until_its_last_attempt(written: Written) -> None:
    ledger = written.ledger

    written.store(1, "fail_always")
    written.start(1, "fail_always")
    ledger.read()
    assert (ledger.waiting, ledger.dead()) == ({1}, 0)
    written.start(1, "fail_always")
    ledger.read()
    assert (ledger.waiting, ledger.dead()) == (set(), 1)


def test_start_counts_once_the_producer_has_recorded_its_job(written: Written) -> None:
    ledger = written.ledger

    written.start(1, "do_nothing")
    written.finish(1, "do_nothing")
    ledger.read()
    assert (ledger.unknown(), list(ledger.late_ms)) == (1, [])
    written.store(1, "do_nothing")
    ledger.read()

    assert (ledger.unknown(), list(ledger.late_ms)) == (0, [LATE_MS])
    assert ledger.waiting == set()


def test_record_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.store(1, "do_nothing")
    (path,) = tmp_path.glob("producer-*")
    whole = path.read_bytes()

    path.write_bytes(whole[:7])
    written.ledger.read()
    assert written.ledger.waiting == set()
    path.write_bytes(whole)
    written.ledger.read()

    assert written.ledger.waiting == {1}


def test_first_attempt_is_the_earliest_whichever_worker_made_it(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path)
    written.store(1, "fail_twice")
    recorders = [Recorder(tmp_path, f"worker-{n}") for n in range(3)]

    for recorder, attempt in zip(recorders, (2, 0, 1), strict=True):
        at_ms = DUE_MS + LATE_MS + 1_000 * attempt
        recorder.record(Event.STARTED, 1, NUMBERS["fail_twice"], at_ms)
    written.ledger.read()

    assert list(written.ledger.late_ms) == [LATE_MS]


def test_first_start_before_the_start_time_is_early(written: Written) -> None:
    written.store(1, "do_nothing")
    written.start(1, "do_nothing", DUE_MS - 0.5)
    written.store(2, "publish")
    written.producer.record(Event.MOVED, 2, NUMBERS["publish"], DUE_MS + 2_000)
    written.start(2, "publish", DUE_MS + 1_999)

    written.ledger.read()

    assert written.ledger.early == 2


@pytest.mark.parametrize(("kills", "doubled"), [(0, ([], [1])), (1, ([1], []))])
def test_second_run_is_explained_by_a_worker_that_was_lost(
    kills: int, doubled: tuple[list[int], list[int]], written: Written
) -> None:
    written.store(1, "do_nothing")
    for kills_so_far in (0, kills):
        written.start(1, "do_nothing", kills=kills_so_far)
        written.finish(1, "do_nothing")

    written.ledger.read()

    assert written.ledger.doubled() == doubled


def test_cancelled_job_that_runs_is_doubled(written: Written) -> None:
    written.store(1, "remind")
    written.producer.record(Event.CANCELLED, 1, NUMBERS["remind"], DUE_MS)
    written.start(1, "remind")

    written.ledger.read()

    assert written.ledger.doubled() == ([], [1])


def test_job_that_follows_is_on_the_server_once_the_first_has_ended(
    written: Written,
) -> None:
    written.store(1, "take_order")
    written.store(2, "confirm_order", 0.0)
    ledger = written.ledger

    ledger.read()
    assert (len(ledger.waiting), ledger.on_server()) == (2, 1)
    written.start(1, "take_order")
    written.finish(1, "take_order")
    ledger.read()

    assert (len(ledger.waiting), ledger.on_server()) == (1, 1)
