"""How many jobs a call asks for. All durations are made up; no clock is read."""

import random

import pytest

from django_delayq.transport.batch_size import CALL_SHARE, TARGET_MS, BatchSizer


def claims(first: int = 64) -> BatchSizer:
    """Make the sizer of a worker's claims."""
    return BatchSizer(first=first, least=8, most=500)


def claim(
    sizer: BatchSizer, call_ms: float, element_ms: float, room: int = 500
) -> tuple[int, float]:
    """Make one call with these costs; returns the jobs that came, and how long it took."""
    jobs = min(sizer.size, room)
    took_ms = call_ms + jobs * element_ms
    sizer.learn(jobs, took_ms)
    return jobs, took_ms


@pytest.mark.parametrize("element_ms", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("call_ms", [0.2, 3.0, 30.0, 100.0])
def test_batch_grows_until_its_jobs_cost_nearly_as_much_as_the_call(
    call_ms: float, element_ms: float
) -> None:
    sizer = claims()
    # A worker that has just started has room for few jobs.
    for room in (8, 8, 16, 40, 90):
        claim(sizer, call_ms, element_ms, room)

    calls = [claim(sizer, call_ms, element_ms) for _ in range(60)]

    fitting = min(500, max(TARGET_MS, CALL_SHARE * call_ms) / element_ms)
    sizes = [jobs for jobs, _ in calls[20:]]
    assert 0.8 * fitting <= sum(sizes) / len(sizes) <= 1.1 * fitting
    # Twice the call, and the share without it, would be the bound: this leaves room for a call unlike the others.
    assert max(took_ms for _, took_ms in calls) <= 5.0 + 1.9 * call_ms


def test_a_scan_and_the_jobs_are_told_apart() -> None:
    sizer, chance = claims(), random.Random(1)

    for _ in range(40):
        claim(sizer, 30 + chance.uniform(-1, 1), 0.05, chance.randrange(20, 400))

    assert sizer.call_ms == pytest.approx(30, rel=0.1)
    assert sizer.element_ms == pytest.approx(0.05, rel=0.2)


def test_calls_of_one_size_alone_are_followed_by_larger_ones() -> None:
    """The time for eight jobs does not show whether each job takes an eighth of it."""
    sizer = claims(first=8)

    calls = [claim(sizer, 6.0, 0.02)[0] for _ in range(12)]

    assert calls[:3] == [8, 16, 25]
    assert max(calls) > 150


def test_large_jobs_make_small_batches() -> None:
    sizer = claims()

    calls = [claim(sizer, 0.2, 1.0) for _ in range(10)]

    assert [jobs for jobs, _ in calls[:3]] == [64, 32, 8]
    # Calls of eight jobs show nothing, so now and then one asks for sixteen.
    assert all(jobs <= 16 for jobs, _ in calls[3:])


def test_batch_follows_a_list_that_grows_and_shrinks() -> None:
    sizer, chance = claims(), random.Random(2)

    sizes = []
    for call_ms in (1.0, 30.0, 1.0):
        for _ in range(60):
            claim(sizer, call_ms, 0.1, chance.randrange(20, 500))
        sizes.append(sizer.size)

    assert sizes[1] > 150
    assert max(sizes[0], sizes[2]) < 45


def test_one_call_that_was_held_up_changes_little() -> None:
    sizer, chance = claims(), random.Random(3)
    for _ in range(40):
        claim(sizer, 0.5, 0.02, chance.randrange(20, 500))
    before = sizer.size

    sizer.learn(before, 1_000.0)
    sizes = [claim(sizer, 0.5, 0.02, chance.randrange(20, 500))[0] for _ in range(10)]

    assert sizer.call_ms < 5
    assert max(sizes) > before / 3


def test_elements_that_suddenly_cost_much_more_make_few_long_calls() -> None:
    """Something else may have made one call slow, but not two in a row."""
    sizer = BatchSizer(
        first=64, least=2, most=500, target_ms=3.0, call_share=0.0, patience=2
    )
    for _ in range(60):
        claim(sizer, 0.2, 0.004)

    calls = [claim(sizer, 0.2, 0.1) for _ in range(60)]

    assert calls[0][0] == 500
    assert sum(took_ms > 6.0 for _, took_ms in calls) == 3
    assert all(2.0 < took_ms < 4.0 for _, took_ms in calls[3:])


@pytest.mark.parametrize("far_ms", [0.2, 50.0])
def test_elements_that_cost_more_than_a_call_may_are_taken_by_twos_and_fours(
    far_ms: float,
) -> None:
    sizer = BatchSizer(first=64, least=2, most=500, target_ms=3.0, call_share=0.0)

    calls = [claim(sizer, far_ms, 2.0)[0] for _ in range(60)]

    assert calls[:2] == [64, 32]
    assert all(jobs <= 4 for jobs in calls[2:])


def test_bounds_hold_from_the_next_call_on() -> None:
    sizer = claims()

    sizer.bound(100, 200)
    assert sizer.size == 100
    for _ in range(10):
        claim(sizer, 0.2, 0.001)
    assert sizer.size == 200

    sizer.bound(8, 50)
    assert sizer.size == 50


def test_a_call_that_brings_nothing_teaches_nothing() -> None:
    sizer = claims()

    sizer.learn(0, 1_000.0)

    assert (sizer.size, sizer.call_ms, sizer.element_ms) == (64, 0.0, 0.0)


def test_few_that_were_there_do_not_make_a_batch_grow() -> None:
    sizer = claims()

    for _ in range(20):
        sizer.learn(10, 0.5)

    assert sizer.size == 64


def test_jobs_that_seem_to_cost_nothing_on_a_busy_machine_make_no_long_call() -> None:
    unaware = BatchSizer(first=64, least=8, most=500)
    sizer = BatchSizer(first=64, least=8, most=500, least_ms=TARGET_MS / 250)
    chance = random.Random(3)
    sizes, unaware_sizes = [], []

    for _ in range(200):
        sizes.append(claim(sizer, chance.uniform(0.5, 7.0), 0.01)[0])
        unaware_sizes.append(claim(unaware, chance.uniform(0.5, 7.0), 0.01)[0])

    assert max(unaware_sizes) == 500
    # The share of a costly call, at most: the mean of the first part is below 7 ms.
    assert max(sizes) <= CALL_SHARE * 10 / (TARGET_MS / 250)
    assert sorted(sizes)[100] <= 250
