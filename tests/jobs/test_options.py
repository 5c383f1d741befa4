from datetime import timedelta
from typing import Any

import pytest

from django_delayq import Backoff
from django_delayq.exceptions import DelayqError
from django_delayq.jobs.options import TaskOptions, seconds


@pytest.mark.parametrize(
    ("changes", "carried"),
    [
        ({}, None),
        ({"max_attempts": 5}, None),  # as the task has it
        ({"max_attempts": 1}, {"max_attempts": 1}),
        ({"time_limit": timedelta(seconds=1.5)}, {"time_limit": 1.5}),
        ({"expires": 9, "on_expiry": "dead"}, {"expires": 9.0, "on_expiry": "dead"}),
        ({"keep_result": 60}, {"keep_result": 60.0}),
        (
            {"backoff": Backoff(base=1, factor=2, max=3, jitter=0)},
            {"backoff": [1, 2, 3, 0]},
        ),
        # Known before it is sent, so it need not travel.
        ({"queue": "other", "unique": True, "on_commit": True}, None),
    ],
)
def test_what_one_call_changes_travels_and_comes_back(
    changes: dict[str, Any], carried: dict[str, Any] | None
) -> None:
    base = TaskOptions(max_attempts=5)
    options = base.changed(**changes)

    assert options.carried(base) == carried

    back = base.with_carried(carried or {})
    for name in TaskOptions.CARRIED:
        value, original = getattr(back, name), getattr(options, name)
        assert value == original or seconds(value) == seconds(original)


def test_option_set_back_to_the_queues_own_travels_too() -> None:
    base = TaskOptions(time_limit=5, keep_result=60)
    carried = base.changed(time_limit=None, keep_result=None).carried(base)

    assert carried == {"time_limit": None, "keep_result": None}
    assert base.with_carried(carried).time_limit is None


def test_newer_version_may_carry_what_we_do_not_know() -> None:
    assert TaskOptions().with_carried(
        {"colour": "red", "max_attempts": 2}
    ) == TaskOptions(max_attempts=2)


@pytest.mark.parametrize(
    "carried",
    [
        {"max_attempts": 0},
        {"max_attempts": "many"},
        {"time_limit": -1},
        {"on_expiry": 5},
        {"backoff": 5},
        {"backoff": [1, 2]},
        {"backoff": [1, 0.5, 3, 0]},
        {"backoff": ["a", 2, 3, 0]},
        {"backoff": {"base": 1}},
    ],
)
def test_bad_options_in_a_payload_are_an_error_of_ours(carried: dict[str, Any]) -> None:
    """The worker puts such a job into quarantine; another error would count as its failure."""
    with pytest.raises(DelayqError):
        TaskOptions().with_carried(carried)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.001, 0.001),
        (timedelta(minutes=1), 60.0),
        (0, None),
        (-1, None),
        (timedelta(0), None),
        (True, None),
        (None, None),
        ("1", None),
        (float("nan"), None),
        (float("inf"), None),
        (10**9, None),
    ],
)
def test_seconds_are_a_time_above_zero(value: Any, number: float | None) -> None:
    assert seconds(value) == number
