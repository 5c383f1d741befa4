"""How fast jobs are run: everything that takes time is made up, no clock is read."""

import pytest

from django_delayq.worker.dispatch import Pace


@pytest.mark.parametrize("call_ms", [1.0, 30.0, 300.0])
def test_waiting_for_a_call_does_not_make_the_pace_slower(call_ms: float) -> None:
    pace, now_ms = Pace(), 1_000.0

    for _ in range(30):
        # A claim brings 100 jobs, of which 20 a ms are run; the next one takes its time.
        pace.note(now_ms, 0.0)
        ended_ms = now_ms + 5
        now_ms += 5 + call_ms
        pace.note(now_ms, ended_ms)
        pace.measure(100, is_busy=True)

    assert pace.rate == pytest.approx(20)


def test_pace_is_that_of_the_jobs_while_there_are_more_of_them() -> None:
    pace, now_ms = Pace(), 1_000.0

    for _ in range(30):
        now_ms += 4
        # Some are still queued.
        pace.note(now_ms, now_ms)
        pace.measure(10, is_busy=True)

    assert pace.rate == pytest.approx(2.5)


def test_few_jobs_now_and_then_say_nothing_of_the_pace() -> None:
    pace, now_ms = Pace(), 1_000.0

    for _ in range(30):
        pace.note(now_ms, 0.0)
        now_ms += 20
        pace.note(now_ms, now_ms - 1)
        pace.measure(1, is_busy=False)

    assert pace.rate == 0


def test_pace_is_measured_over_some_time() -> None:
    """The ends of a handful of jobs within microseconds would tell of any pace."""
    pace = Pace()
    pace.note(1_000.0, 0.0)
    pace.measure(0, is_busy=True)

    for n in range(1, 20):
        pace.note(1_000 + n / 10, 1_000 + n / 10)
        pace.measure(4 if n % 2 else 0, is_busy=True)
        assert pace.rate == pytest.approx(20, rel=0.2) or n < 10
