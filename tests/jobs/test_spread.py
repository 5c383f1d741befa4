"""`spread`: a random wait for each job, never a negative one, and none where nobody asked."""

import secrets
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from django_delayq import InvalidTask, delayed_task, schedule_many
from django_delayq.wire.delay import MAX_DELAY_MS, MAX_START_TIME_MS
from tests.jobs.hand import Hand
from tests.jobs.samples import add

MOMENT = datetime(2035, 5, 2, 9, tzinfo=UTC)
MOMENT_MS = round(MOMENT.timestamp() * 1000)


@pytest.fixture(params=["nothing", "everything"])
def drawn(request, monkeypatch):
    """Draw the least or the greatest of all waits; return what part of the spread that is."""
    is_all = request.param == "everything"
    monkeypatch.setattr(secrets, "randbelow", lambda below: below - 1 if is_all else 0)
    return int(is_all)


@pytest.mark.parametrize(
    ("delay", "kind", "start_ms"),
    [
        (0, "+", 0),
        (1.5, "+", 1_500),
        (timedelta(hours=1), "+", 3_600_000),
        (MOMENT, "=", MOMENT_MS),
    ],
)
@pytest.mark.parametrize(
    ("spread", "spread_ms"),
    [(60, 60_000), (timedelta(minutes=5), 300_000), (0.0001, 1)],
)
def test_delay_is_between_what_was_asked_for_and_the_whole_spread_later(
    queue, drawn, delay, kind, start_ms, spread, spread_ms
):
    job = add.using(queue=queue, spread=spread).prepare(delay, 1, 2)

    assert job.draft.new.when == f"{kind}{start_ms + drawn * spread_ms}"


@pytest.mark.parametrize(
    ("delay", "when"),
    [
        (Decimal(MAX_DELAY_MS) / 1000, f"+{MAX_DELAY_MS}"),
        (datetime.max.replace(tzinfo=UTC), f"={MAX_START_TIME_MS}"),
    ],
)
def test_spread_ends_where_time_does(queue, drawn, delay, when):
    job = add.using(queue=queue, spread=60).prepare(delay, 1, 2)

    assert job.draft.new.when == when


def test_each_of_many_jobs_has_a_wait_of_its_own_and_none_is_early(queue, hand: Hand):
    task = add.using(queue=queue, spread=timedelta(minutes=5))

    jobs = schedule_many(task.prepare(MOMENT, n, 0) for n in range(300))

    starts = [job.start_time_ms - MOMENT_MS for job in jobs]
    assert all(0 <= start <= 300_000 for start in starts)
    # 300 draws from 300,000: one in a googol tests sees fewer.
    assert len(set(starts)) > 200
    assert [job.refresh() for job in jobs[:3]] == ["scheduled"] * 3


def test_decorator_gives_the_spread_and_one_call_may_leave_it_out(queue, drawn):
    @delayed_task(name="spread-task", queue=queue, spread=60)
    def task():
        pass

    assert task.prepare(5).draft.new.when == f"+{5_000 + drawn * 60_000}"
    assert task.using(spread=None).prepare(5).draft.new.when == "+5000"


def test_moved_job_has_the_time_it_was_given(queue, drawn):
    job = add.using(queue=queue, spread=60).prepare(5, 1, 2)

    assert job.reschedule(7)

    assert job.draft.new.when == "+7000"


def test_spread_does_not_travel(queue):
    assert add.using(queue=queue, spread=60).prepare(5, 1, 2).options is None


@pytest.mark.parametrize(
    "spread", [0, -1, "5 min", True, float("nan"), timedelta(0), 10**9]
)
def test_wrong_spread_is_refused(spread):
    with pytest.raises(InvalidTask, match=r"spread=.*seconds above 0 or a timedelta"):
        add.using(spread=spread)
