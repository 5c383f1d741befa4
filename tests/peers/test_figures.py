"""Figures come from records as they say."""

import pytest

from benchmarks.peers import figures
from benchmarks.peers.measurements import scaled
from benchmarks.peers.records import END, START, Record


def starts(*late_ms: float) -> list[Record]:
    return [Record(i, START, 100.0, 100.0 + ms / 1000) for i, ms in enumerate(late_ms)]


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 10), (0.5, 25), (1, 40), (0.25, 17.5)]
)
def test_percentile_lies_between_two_values(share: float, expected: float) -> None:
    assert figures.percentile([10, 20, 30, 40], share) == pytest.approx(expected)


def test_lateness_is_of_the_first_start_and_counts_the_second() -> None:
    records = [*starts(1, 2, 3), Record(0, START, 100.0, 100.5)]

    found = figures.lateness(records, 4)

    assert (found["seen"], found["lost"], found["twice"]) == (3, 1, 1)
    assert found["p50_ms"] == pytest.approx(2, abs=1e-6)
    assert found["most_ms"] == pytest.approx(3, abs=1e-6)


def test_lateness_tells_what_started_early_by_more_than_a_millisecond() -> None:
    found = figures.lateness(starts(-0.9, -5, 2), 3)

    assert found["early"] == 1
    assert found["least_ms"] == pytest.approx(-5, abs=1e-6)
    assert found["farthest_ms"] == pytest.approx(5, abs=1e-6)


def test_lateness_of_nothing_has_no_percentiles() -> None:
    assert figures.lateness([], 3) == {"n": 3, "seen": 0, "lost": 3, "twice": 0}


def test_ends_are_no_starts() -> None:
    assert figures.lateness([Record(0, END, 0.0, 1.0)], 1)["seen"] == 0


def test_rate_is_between_the_first_start_and_the_last() -> None:
    assert figures.rate([10.0, 10.5, 11.0]) == pytest.approx(2)
    assert figures.rate([10.0]) is None
    assert figures.rate([10.0, 10.0]) is None


def test_crash_tells_what_was_lost_run_again_and_run_later() -> None:
    # 0 had ended, 1 and 2 were in flight, 3 and 4 had not started.
    before = [
        Record(0, START, 0, 10.0),
        Record(1, START, 0, 10.0),
        Record(2, START, 0, 10.0),
        Record(0, END, 0, 10.1),
    ]
    after = [
        *before,
        Record(3, START, 0, 13.0),
        Record(3, END, 0, 13.1),
        Record(1, START, 0, 15.0),
        Record(1, END, 0, 15.1),
    ]

    found = figures.crash(before, after, 5, restarted=12.0)

    assert found == {
        "n": 5,
        "in_flight": 2,
        "lost": 1,
        "never_ended": 2,
        "never_started": 1,
        "twice": 1,
        "ended_and_again": 0,
        "again": 1,
        "again_last_s": 3.0,
        "rest_last_s": 1.0,
    }


@pytest.mark.parametrize(
    ("rate", "expected"), [(None, 5_000), (1_000, 5_000), (97, 1_900), (1, 200)]
)
def test_slow_system_gets_fewer_jobs(rate: float | None, expected: int) -> None:
    assert scaled(5_000, rate, 20) == expected


def test_slow_system_gets_no_more_jobs_than_were_asked_for() -> None:
    assert scaled(50, 1, 20) == 50
