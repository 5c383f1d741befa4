"""What a task raises to decide about its job: checked where it is made, and taken for a failure by nobody."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from django_delayq import Cancel, DelayqError, InvalidDelay, Retry, Snooze

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("decision", [Retry, Snooze])
@pytest.mark.parametrize(
    ("delay", "when"),
    [
        (0, "+0"),
        (1.5, "+1500"),
        (Decimal("0.0001"), "+1"),
        (timedelta(minutes=2), "+120000"),
        (MOMENT, "=1893456000000"),
    ],
)
def test_delay_is_whatever_schedule_takes(decision, delay, when):
    assert decision(delay).when == when


def test_retry_without_a_delay_leaves_it_to_the_backoff():
    assert Retry().when == Retry(None).when == ""


@pytest.mark.parametrize("decision", [Retry, Snooze])
@pytest.mark.parametrize(
    "delay",
    [-1, timedelta(seconds=-1), float("nan"), "soon", datetime(2030, 1, 1), True, [5]],
)
def test_wrong_delay_is_refused_where_the_exception_is_made(decision, delay):
    with pytest.raises(InvalidDelay, match=r"delay|time zone"):
        decision(delay)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(5, OSError("refused")),
        lambda: Snooze(5, 5),
        lambda: Cancel(None),
    ],
)
def test_reason_that_is_no_text_is_refused_with_the_way_to_keep_an_error(make):
    with pytest.raises(TypeError, match=r"reason of a \w+ is text.*from error"):
        make()


@pytest.mark.parametrize("make", [lambda: Retry(5), lambda: Snooze(5), Cancel])
def test_except_exception_does_not_take_a_decision_for_a_failure(make):
    def decide():
        try:
            raise make()
        except Exception:
            return "it was taken for an error"

    with pytest.raises(type(make())):
        decide()
    assert not isinstance(make(), DelayqError)


@pytest.mark.parametrize(
    "decision", [Retry(), Retry(5, "why"), Snooze(MOMENT, "why"), Cancel("why")]
)
@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_decision_survives_copy_and_pickle(decision, again):
    twin = again(decision)

    assert type(twin) is type(decision)
    assert (str(twin), vars(twin)) == (str(decision), vars(decision))
